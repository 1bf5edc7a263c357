// Small drawings, each 16 by 16, in the colour of the text around them.

import { svg } from "./element.js";

const STROKES = {
  arrow: "M9.5 3.5 5 8l4.5 4.5",
  chart: "M2.5 13.5h11M3.5 10.5l3-4 2.5 2 4-5",
  check: "M3.5 8.5l3 3 6-7",
  clock: "M8 4.5V8l2.3 1.6M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0z",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5h7v7h-7zM10.5 5.5v-2h-7v7h2",
  down: "M8 3v9M4 8.5 8 12.5l4-4",
  host: "M2.5 3.5h11v4h-11zM2.5 8.5h11v4h-11zM5 5.5h.01M5 10.5h.01",
  key: "M2 4.5h12v7H2zM4.5 7h.01M7 7h.01M9.5 7h.01M12 7h.01M5.5 9.3h5",
  list: "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
  moon: "M13 9.6A5.5 5.5 0 0 1 6.4 3a5.5 5.5 0 1 0 6.6 6.6z",
  open: "M6.5 3.5h-3v9h9v-3M9 3.5h3.5V7M12.2 3.8 7.5 8.5",
  play: "M5 3.5v9l7.5-4.5z",
  refresh: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  search: "M11 11l3 3M12.3 7.2a5 5 0 1 1-10 0 5 5 0 0 1 10 0z",
  stack: "M8 2.5 14 5.5 8 8.5 2 5.5zM2 8.3l6 3 6-3M2 11l6 3 6-3",
  stop: "M4.5 4.5h7v7h-7z",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  system: "M2 3h12v8H2zM6 13.5h4M8 11v2.5",
  warning: "M8 2.5 14.3 13.2H1.7zM8 6.5v3M8 11.4h.01",
  out: "M6.5 2.5h-4v11h4M7 8h7M11 5l3 3-3 3",
};

/** Draw an icon; it says nothing to a screen reader. */
export function icon(name, attributes = {}) {
  return svg(
    "svg",
    {
      viewBox: "0 0 16 16",
      width: 16,
      height: 16,
      "aria-hidden": "true",
      focusable: "false",
      ...attributes,
      class: `icon ${attributes.class ?? ""}`,
    },
    svg("path", {
      d: STROKES[name],
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 1.5,
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    }),
  );
}
