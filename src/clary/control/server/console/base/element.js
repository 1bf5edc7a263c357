// Makes elements. Text goes in as text nodes only: names, logs and metrics of jobs are hostile.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an HTML element.
 * Attributes: `class`, `on: {event: handler}`, `data: {name: value}`, `style: {property: value}`, any other by name;
 * true is an empty attribute, false, null and undefined are left out.
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element; takes what `element` takes. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

/** Put children in the place of those that an element has. */
export function refill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter(isShown).map(node));
  return parent;
}

/** Replace what is in a place only where what it shows has changed, so that focus and selection stay. */
export class Kept {
  #inputs = new WeakMap();

  show(place, input, make) {
    const text = JSON.stringify(input) ?? "";
    if (this.#inputs.get(place) === text) return;
    this.#inputs.set(place, text);
    refill(place, make(input));
  }
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "style")
      for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat(Infinity).filter(isShown).map(node));
  return made;
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false;
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}
