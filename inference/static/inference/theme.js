/* What the sheet cannot do alone: cells that say what they are on a phone, where one is, lists that close again, and a
   question before what cannot be undone. */
"use strict";
{
  const label = () => {
    for (const table of document.querySelectorAll("#result_list, table.cards")) {
      const names = Array.from(table.querySelectorAll("thead th"), (head) => head.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        Array.from(row.cells).forEach((cell, place) => { cell.dataset.label = cell.colSpan === 1 && names[place] || ""; });
      }
    }
  };
  label();
  document.addEventListener("renewed", label);
  document.querySelector("#places [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"});

  const closeOthers = (kept) => {
    for (const details of document.querySelectorAll("details.filter[open]")) {
      if (!details.contains(kept)) details.open = false;
    }
  };
  document.addEventListener("click", (event) => closeOthers(event.target));
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.querySelector("details.filter[open]");
    if (open) {
      open.open = false;
      open.querySelector("summary").focus();
    }
  });

  const FINAL = ["cancel_jobs", "cancel", "revoke"];  // of the actions of lists
  document.addEventListener("submit", (event) => {
    const form = event.target, option = form.querySelector(".actions select option:checked");
    const isAskedByServer = option?.value === "cancel_jobs" && form.elements.select_across.value !== "0";
    const isFinal = option ? FINAL.includes(option.value) && !isAskedByServer && form.querySelector(".action-select:checked")
      : event.submitter && "final" in event.submitter.dataset;
    const text = (option ?? event.submitter)?.textContent.trim();
    if (isFinal && !confirm(`${text}? This cannot be undone.`)) event.preventDefault();
  });
}
