/* What the sheet cannot do alone: cells that say what they are on a phone, where one is, and lists that close again. */
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
}
