// Search among the samples. Without JavaScript the form stays hidden and the first samples are there.
"use strict";
(() => {
  const form = document.getElementById("search");
  const samples = [...document.querySelectorAll(".sample")];
  const atFirst = samples.filter(sample => !sample.hidden).length;
  const texts = samples.map(sample => sample.textContent.toLowerCase());
  const show = () => {
    const wanted = form.elements.text.value.trim().toLowerCase();
    const kind = form.elements.kind.value;
    const found = samples.filter((sample, index) =>
      texts[index].includes(wanted) && (!kind || sample.dataset.kind === kind));
    const shown = new Set(wanted || kind ? found : found.slice(0, atFirst));
    for (const sample of samples) sample.hidden = !shown.has(sample);
    form.elements.found.value = `${shown.size} of ${samples.length} shown`;
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", event => event.preventDefault());
  form.hidden = false;
  show();
})();
