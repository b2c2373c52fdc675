// What is wrong with a page: contrast, labels, headings, room.
() => {
  const found = [];
  const luminance = (color) => color.slice(0, 3).map((each) => each / 255)
    .map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const parsed = (text) => text.match(/[\d.]+/g).map(Number);
  const behind = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) {
      const color = parsed(getComputedStyle(each).backgroundColor);
      const alpha = color.length > 3 ? color[3] : 1;
      if (alpha > 0) layers.push([color, alpha]);
      if (alpha === 1) break;
    }
    return layers.reverse().reduce((below, [color, alpha]) => below.map((each, i) => each * (1 - alpha) + color[i] * alpha), [255, 255, 255]);
  };
  for (const each of document.querySelectorAll("body *")) {
    const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !each.getClientRects().length || each.closest("svg")) continue;
    const pair = [parsed(getComputedStyle(each).color), behind(each)].map(luminance).sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(1)}: ${each.outerHTML.slice(0, 90)}`);
  }
  for (const each of document.querySelectorAll("input:not([type=hidden]), select")) {
    if (!each.labels || !each.labels.length || !each.labels[0].textContent.trim()) found.push(`no label: ${each.outerHTML}`);
  }
  for (const each of document.querySelectorAll("a, button")) if (!each.textContent.trim()) found.push(`no text: ${each.outerHTML}`);
  for (const each of document.querySelectorAll("th")) if (!each.scope) found.push(`no scope: ${each.outerHTML}`);
  for (const each of document.querySelectorAll("svg.chart")) if (!each.getAttribute("aria-label")) found.push("a chart without words");
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  if (new Set(ids).size !== ids.length) found.push(`ids twice: ${ids}`);
  if (document.querySelectorAll("h1").length !== 1) found.push("not one heading of the page");
  if (!document.documentElement.lang || !document.title) found.push("no language or title");
  if (document.documentElement.scrollWidth > innerWidth) found.push(`wider than the screen: ${document.documentElement.scrollWidth}`);
  return found;
}
