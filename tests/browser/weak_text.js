// Texts on the page with less contrast to what lies behind them than WCAG's AA asks for.
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = (color) => {
    const [r, g, b] = [...color].map((part) => (part / 255 <= 0.04045 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return rgba("white");
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const weak = [];
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest(":disabled, .unseen, option")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(rgba(node.namespaceURI.endsWith("svg") ? style.fill : style.color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push(`${texts.currentNode.data.trim()}: ${ratio.toFixed(2)}`);
  }
  return weak;
}
