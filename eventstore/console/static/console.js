// Live figures: parts of a page that the server sends go to their places. Everything else works without this script.
"use strict";

const ROWS_MAX = 200;

function follow(element) {
  const source = new EventSource(element.dataset.live);
  const note = (text) => { for (const each of element.querySelectorAll("[data-note]")) each.textContent = text; };
  for (const place of element.querySelectorAll("[data-place]")) {
    source.addEventListener(place.dataset.place, (event) => { place.innerHTML = event.data; note(""); });
  }
  for (const list of element.querySelectorAll("[data-newest]")) {
    source.addEventListener(list.dataset.newest, (event) => {
      list.insertAdjacentHTML("afterbegin", event.data);
      while (list.children.length > ROWS_MAX) list.lastElementChild.remove();
    });
  }
  source.addEventListener("ended", (event) => { source.close(); note("Not live any more: " + event.data); });
  source.onerror = () => note("Not live: the server does not answer.");
  source.onopen = () => note("Live.");
}

for (const element of document.querySelectorAll("[data-live]")) follow(element);
