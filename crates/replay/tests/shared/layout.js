// Looks at a report as a reader does, and comes to what is wrong with it, a sentence each.
(async () => {
  for (const chart of document.querySelectorAll(".chart")) {
    chart.scrollIntoView();
    while (!chart.querySelector(".plot-container .xtick")) await new Promise(done => setTimeout(done, 20));
  }
  scrollTo(0, 0);
  await document.fonts.ready;
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) wrong.push(`the page is ${root.scrollWidth} px wide`);

  // Each piece of text with where it is shown. (A flame graph's names end where their parts do.)
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const texts = [];
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    const style = getComputedStyle(element);
    if (!node.data.trim() || element.closest("script, style, .modebar, .flame") || style.visibility === "hidden") continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const { index, 0: size } of node.data.matchAll(/\d\s(?:[KMGT]i)?B\b/g)) {
      range.setStart(node, index);
      range.setEnd(node, index + size.length);
      if (range.getClientRects().length > 1) wrong.push(`a line ends within a size in '${node.data.trim()}'`);
    }
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (box.width > 1 && box.height > 1) texts.push({ text: node.data.trim(), element, box });
  }

  // Nothing is cut: what holds the text is as wide, or says that it scrolls.
  for (const { text, element, box } of texts) {
    const scroller = element.closest(".wide");
    if (!scroller && (box.left < -1 || box.right > innerWidth + 1)) wrong.push(`'${text}' is off the screen`);
    if (scroller) {
      const edge = scroller.getBoundingClientRect().right;
      if (box.left < edge - 1 && box.right > edge + 1) wrong.push(`'${text}' is cut where its table scrolls`);
    }
    const chart = element.closest(".chart");
    if (chart) {
      const edge = chart.getBoundingClientRect();
      if (box.left < edge.left - 1 || box.right > edge.right + 1 || box.top < edge.top - 1 || box.bottom > edge.bottom + 1)
        wrong.push(`'${text}' is cut by its chart`);
    }
    const cell = element.closest("td, th");
    if (cell) {
      const edge = cell.getBoundingClientRect();
      if (box.left < edge.left - 1 || box.right > edge.right + 1) wrong.push(`'${text}' is wider than its cell`);
    }
  }

  // No text lies on another.
  texts.forEach(({ text, element, box }, at) => {
    for (const other of texts.slice(at + 1)) {
      if (other.element === element || other.box.top > box.bottom + 2000) continue;
      const wide = Math.min(box.right, other.box.right) - Math.max(box.left, other.box.left);
      const high = Math.min(box.bottom, other.box.bottom) - Math.max(box.top, other.box.top);
      // Lines of text are higher than their letters.
      if (wide > 2 && high > 6) wrong.push(`'${text}' lies on '${other.text}'`);
    }
  });

  // Text can be read on what is behind it.
  const channels = colour => colour.match(/[\d.]+/g).map(Number);
  const light = colour => {
    const [red, green, blue] = channels(colour).map(value => value / 255)
      .map(value => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const back = getComputedStyle(document.body).backgroundColor;
  const seen = new Set();
  for (const { text, element } of texts) {
    const style = getComputedStyle(element);
    const colour = element.closest("svg") ? style.fill : style.color;
    let behind = element;
    while (behind && channels(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
    const under = behind ? getComputedStyle(behind).backgroundColor : back;
    const [one, other] = [light(colour), light(under)].sort((a, b) => b - a);
    const contrast = (one + 0.05) / (other + 0.05);
    if (contrast < 4.5 && !text.startsWith("━") && !seen.has(colour)) {
      seen.add(colour);
      wrong.push(`'${text}' has a contrast of ${contrast.toFixed(1)}: ${colour} on ${under}`);
    }
  }

  // What scrolls shows that it does, and has the answer in its first columns.
  for (const table of document.querySelectorAll(".wide")) {
    if (table.scrollWidth <= table.clientWidth) continue;
    const title = table.querySelector("th").textContent;
    if (!getComputedStyle(table).backgroundImage.includes("gradient")) wrong.push(`nothing shows that '${title}' scrolls`);
    for (const answer of ["needs", "runs on", "held", "reserved"]) {
      const cell = [...table.querySelectorAll("th")].find(cell => cell.textContent === answer);
      if (cell && cell.getBoundingClientRect().right > innerWidth) wrong.push(`'${answer}' has to be scrolled to`);
    }
  }
  return wrong;
})()
