// What cannot be read on a page, as a list of words for each thing that is wrong.
var seen = (selector, not) => Array.from(document.querySelectorAll(selector))
  .filter((element) => element.checkVisibility() && !element.closest(not));

// Texts that stand out too little from what lies behind them: less than 4.5 to 1.
var faint = () => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return Array.from(canvas.getImageData(0, 0, 1, 1).data);
  };
  const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (let outer = element; outer; outer = outer.parentElement) {
      const colour = parts(getComputedStyle(outer).backgroundColor);
      if (colour[3] > 127) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of seen("body *", "script, option, .skip-to-content-link, svg")) {
    const says = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!says && element.type !== "submit") continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(1)} ${element.className} ${(element.textContent.trim() || element.value).slice(0, 40)}`);
  }
  return bad;
};

// Tables of our pages that a screen reader has no name for.
var nameless = () => Array.from(document.querySelectorAll("table.cards:not([aria-label], [aria-labelledby])"))
  .map((table) => table.textContent.trim().slice(0, 40));

// Things that reach beyond the screen, but for those that are scrolled in their own place.
var tooWide = () => seen("main *, header *", ".scroll, #places, pre, .breadcrumbs, .visually-hidden, svg")
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => `${element.tagName}.${element.className}`);

// Cells, links and headings that lie upon each other.
var overlapping = () => {
  const boxes = seen("#result_list tr:nth-child(-n+3) > *, #header a, #header button, h1", ".action-checkbox, #places")
    .map((element) => [element.textContent.trim(), element.getBoundingClientRect()]);
  const lie = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.flatMap(([text, a], place) =>
    boxes.slice(place + 1).filter(([, b]) => lie(a, b)).map(([other]) => `${text} / ${other}`));
};
