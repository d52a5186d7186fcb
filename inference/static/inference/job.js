/* A job that is not finished: its text as it arrives, and the page anew when its state changes. Rests while hidden. */
"use strict";
{
  const live = document.getElementById("live");
  const arriving = document.getElementById("arriving");
  const EVERY_MS = 1000;

  const look = async () => {
    if (!document.hidden) {
      try {
        const answer = await fetch(live.dataset.url, {headers: {Accept: "application/json"}});
        if (answer.ok) {
          const now = await answer.json();
          if (now.status !== live.dataset.state) {
            location.reload();
            return;
          }
          arriving.hidden = !now.text;
          if (arriving.textContent !== now.text) arriving.textContent = now.text;
        }
      } catch (error) {
        if (!(error instanceof TypeError)) throw error;  // no connection: looked for again
      }
    }
    setTimeout(look, EVERY_MS);
  };
  if (live) setTimeout(look, EVERY_MS);
}
