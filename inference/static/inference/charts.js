/* The first page as it is now: its tables and its charts are fetched again while somebody looks at it. */
"use strict";
{
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 132, LEFT = 52, BOTTOM = 18, TOP = 8, RIGHT = 6;
  const EVERY_MS = { "15m": 5000, day: 30000, month: 120000 };
  const NOW_MS = 10000;

  const seconds = (value) => value >= 7200 ? `${(value / 3600).toFixed(1)} h` : value >= 120 ? `${(value / 60).toFixed(1)} min`
    : value >= 10 ? `${Math.round(value)} s` : value >= 1 ? `${value.toFixed(1)} s` : `${Math.round(value * 1000)} ms`;
  const number = (value) => value >= 10000 ? `${(value / 1000).toFixed(0)}k` : value >= 100 || value === Math.round(value)
    ? String(Math.round(value)) : value >= 1 ? value.toFixed(1) : value.toFixed(2);
  const bytes = (value) => value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
  const span = (value) => {
    const unit = value >= 7200 ? 3600 : value >= 120 ? 60 : 1;
    return ceiling(value / unit) * unit;
  };
  const doubling = (value) => 2 ** Math.ceil(Math.log2(Math.max(value, 2 ** 20)));
  const share = (value) => `${number(value * 100)} %`;

  const CHARTS = [
    { title: "Throughput, jobs a second", show: number, lines: { succeeded: "succeeded", failed: "failed", others: "cancelled or expired" } },
    { title: "Failures a minute, by error", show: number },  // its lines are those there are
    { title: "Waiting and running jobs", show: number, lines: { queued: "waiting", running: "running" } },
    { title: "Oldest waiting job", show: seconds, ceiling: span, lines: { oldest_s: "age" } },
    { title: "Wait", show: seconds, ceiling: span, lines: { wait_p50: "median", wait_p95: "p95" } },
    { title: "Run", show: seconds, ceiling: span, lines: { run_p50: "median", run_p95: "p95" } },
    { title: "Items of a batch", show: number, lines: { batch: "mean" } },
    { title: "Padding", show: share, lines: { padding: "share of tokens" } },
    { title: "Generated tokens a second", show: number, lines: { tokens: "tokens" } },
    { title: "Time to first token", show: seconds, ceiling: span, lines: { first_p50: "median", first_p95: "p95" } },
    { title: "Replicas", show: number, lines: { ready: "ready", busy: "busy" } },
    { title: "Memory of models on devices", show: bytes, ceiling: doubling, lines: { memory: "used" } },
  ];

  const make = (name, attributes, ...children) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const html = (name, className, ...children) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };
  /* In UTC, as all times of the admin and of the logs are. */
  const iso = (at) => new Date(at * 1000).toISOString().replace("T", " ");
  const clock = (at, range) => range === "month" ? iso(at).slice(5, 10) : iso(at).slice(11, 16);
  const moment = (at) => `${iso(at).slice(0, 19)} UTC`;

  /* The next of 1, 2, 5, 10 that is not below it. */
  const ceiling = (value) => {
    if (!(value > 0)) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
  };

  class Chart {
    constructor(spec) {
      this.spec = spec;
      this.legend = html("p", "legend");
      this.svg = make("svg", { role: "img", height: HEIGHT });
      this.element = html("figure", "chart card", html("figcaption", "", spec.title), this.legend, this.svg);
      this.svg.addEventListener("pointermove", (event) => point(this.at(event)));
      this.svg.addEventListener("pointerleave", () => point(null));
    }

    x(place) {
      return LEFT + (this.width - LEFT - RIGHT) * place / Math.max(1, this.data.times.length - 1);
    }

    y(value) {
      return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * Math.min(1, value / this.top);
    }

    at(event) {
      const along = (event.offsetX - LEFT) / (this.width - LEFT - RIGHT);
      return Math.max(0, Math.min(this.data.times.length - 1, Math.round(along * (this.data.times.length - 1))));
    }

    draw(data) {
      this.data = data;
      this.width = Math.max(160, this.svg.clientWidth);
      const values = this.lines().map(([, line]) => line);
      const known = values.flat().filter((value) => value !== null);
      this.top = (this.spec.ceiling ?? ceiling)(Math.max(0, ...known));
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
      this.svg.replaceChildren(...this.axes(), ...this.marks(), ...values.map((line, place) => this.line(line, place)));
      this.cursor = make("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
      this.svg.append(this.cursor);
      this.element.classList.toggle("empty", !known.some((value) => value > 0));
      this.tell(pointed);
      this.svg.setAttribute("aria-label", `${this.spec.title}: ${this.legend.textContent}`);
    }

    /* Each with its name. */
    lines() {
      const { series, errors } = this.data;
      return this.spec.lines ? Object.entries(this.spec.lines).map(([key, name]) => [name, series[key]]) : Object.entries(errors);
    }

    axes() {
      const { times, range } = this.data;
      const rows = [0, 0.5, 1].map((part) => {
        const y = this.y(part * this.top);
        return make("g", {}, make("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }),
          make("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, this.spec.show(part * this.top)));
      });
      const places = [0, Math.floor(times.length / 2), times.length - 1];
      return [...rows, ...places.map((place, index) => make("text", {
        x: this.x(place), y: HEIGHT - 4, "text-anchor": ["start", "middle", "end"][index],
      }, clock(times[place], range)))];
    }

    marks() {
      const { times, step_s: step, marks } = this.data;
      return marks.filter((mark) => mark.at >= times[0]).map((mark) => {
        const x = this.x((mark.at - times[0]) / step);
        const text = `${moment(mark.at)}: ${mark.kind} ${mark.text}`;
        return make("line", { class: `mark mark-${mark.kind}`, x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM },
          make("title", {}, text));
      });
    }

    line(values, place) {
      let path = "", dots = "", pen = "M";
      values.forEach((value, index) => {
        if (value === null) { pen = "M"; return; }
        const [x, y] = [this.x(index).toFixed(1), this.y(value).toFixed(1)];
        path += `${pen}${x} ${y}`;
        const alone = pen === "M" && (index + 1 === values.length || values[index + 1] === null);
        if (alone) dots += `M${x} ${y}h0.1`;
        pen = "L";
      });
      const drawn = make("path", { class: `line line-${place}`, d: path });
      return dots ? make("g", {}, drawn, make("path", { class: `line dots line-${place}`, d: dots })) : drawn;
    }

    /* What the lines are at a point, or at the last one that is over. */
    tell(place) {
      if (!this.data) return;
      const here = place ?? Math.max(0, this.data.times.length - 2);
      this.legend.replaceChildren(...this.lines().map(([name, line], index) => {
        const value = line[here];
        return html("span", `key key-${index}`, `${name} `, html("b", "", value === null ? "–" : this.spec.show(value)));
      }));
      this.cursor.setAttribute("visibility", place === null ? "hidden" : "visible");
      this.cursor.setAttribute("x1", this.x(here));
      this.cursor.setAttribute("x2", this.x(here));
    }
  }

  let pointed = null;
  const place = document.getElementById("charts");
  const form = document.getElementById("charts-of");
  const told = document.getElementById("charts-told");
  const charts = CHARTS.map((spec) => new Chart(spec));
  const point = (where) => {
    pointed = where;
    charts.forEach((chart) => chart.tell(where));
    told.textContent = where === null || !charts[0].data ? "" : moment(charts[0].data.times[where]);
  };

  const outcomes = (data) => {
    const list = document.getElementById("charts-ended");
    const ends = Object.entries(data.ended).sort((one, other) => other[1] - one[1]);
    list.replaceChildren(...ends.map(([end, count]) => {
      const [status, code] = end.split(" ");
      const query = new URLSearchParams({ status__exact: status });
      if (code) query.set("error_code", code);
      if (data.model) query.set("model", data.model);
      const link = html("a", `badge badge-${status}`, `${count.toLocaleString()} ${code || status}`);
      link.href = `${form.dataset.jobs}?${query}`;
      return html("li", "", link);
    }));
  };

  const chosen = () => ({ range: form.elements.range.value, model: form.elements.model.value });
  /* Chosen anew meanwhile, it is asked again: the next turn may be minutes away. */
  const showCharts = async () => {
    const asked = chosen();
    const answer = await fetch(`${form.dataset.figures}?${new URLSearchParams(asked)}`, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`figures: ${answer.status}`);
    const data = await answer.json();
    if (asked.range !== chosen().range || asked.model !== chosen().model) return showCharts();
    charts.forEach((chart) => chart.draw(data));
    outcomes(data);
    form.dataset.drawn = Number(form.dataset.drawn || 0) + 1;
  };

  /* What changed is replaced; a link that had the focus has it again. */
  const showTables = async () => {
    const answer = await fetch(form.dataset.now, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(`now: ${answer.status}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const fresh of page.querySelectorAll("[data-now]")) {
      const old = document.getElementById(fresh.id);
      if (!old) continue;
      const folds = old.querySelectorAll("details");
      fresh.querySelectorAll("details").forEach((fold, index) => { fold.open = folds[index]?.open ?? false; });
      if (old.innerHTML === fresh.innerHTML) continue;
      const focused = old.contains(document.activeElement) && document.activeElement.getAttribute("href");
      old.replaceChildren(...document.importNode(fresh, true).childNodes);
      if (focused) old.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
    document.dispatchEvent(new Event("renewed"));
  };

  /* Again and again, but while nobody looks, and never two at once. */
  const repeat = (show, pause) => {
    let timer = 0, busy = false;
    const turn = async () => {
      clearTimeout(timer);
      if (document.hidden || busy) return;
      busy = true;
      try {
        await show();
        place.classList.remove("stale");
      } catch {
        place.classList.add("stale");
      }
      busy = false;
      timer = setTimeout(turn, pause());
    };
    document.addEventListener("visibilitychange", turn);
    return turn;
  };

  if (form && place) {
    place.append(...charts.map((chart) => chart.element));
    const [range, model] = location.hash.slice(1).split("/").map(decodeURIComponent);
    if (range in EVERY_MS) form.elements.range.value = range;
    if (model && [...form.elements.model.options].some((option) => option.value === model)) form.elements.model.value = model;
    const draw = repeat(showCharts, () => EVERY_MS[chosen().range]);
    form.addEventListener("change", () => {
      history.replaceState(null, "", `#${chosen().range}/${encodeURIComponent(chosen().model)}`);
      draw();
    });
    new ResizeObserver(() => charts.forEach((chart) => chart.data && chart.draw(chart.data))).observe(place);
    draw();
    setTimeout(repeat(showTables, () => NOW_MS), NOW_MS);
  }
}
