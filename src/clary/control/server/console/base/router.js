// Which page an address names, and moving between pages without loading anew.

import { element } from "./element.js";

const ROUTES = [
  [/^\/(?:console\/?)?$/, () => ({ page: "jobs" })],
  [/^\/console\/jobs\/?$/, () => ({ page: "jobs" })],
  [
    /^\/console\/jobs\/([^/]+)(?:\/([a-z]+))?\/?$/,
    (found) => ({ page: "job", name: decoded(found[1]), tab: found[2] ?? "overview" }),
  ],
  [/^\/console\/hosts\/?$/, () => ({ page: "hosts" })],
  [/^\/console\/tuning\/?$/, () => ({ page: "tuning" })],
  [/^\/console\/tuning\/([^/]+)\/?$/, (found) => ({ page: "tuning-job", name: decoded(found[1]) })],
  [/^\/console\/compare\/?$/, () => ({ page: "compare" })],
];

let opened = () => {};
let lastList = "/console/jobs"; // as it was searched and filtered last

/** Call `handler` with the place of the address, now and whenever it changes. */
export function follow(handler) {
  opened = handler;
  window.addEventListener("popstate", () => opened(placeOf(location)));
  opened(placeOf(location));
}

/** Go to an address of this console. */
export function go(path, { replace = false } = {}) {
  if (path === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"]({}, "", path);
  opened(placeOf(location));
}

/** Change the query of the address, without a step back for it; empty values are left out. */
export function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) value ? query.set(name, value) : query.delete(name);
  const text = query.toString();
  history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
  if (placeOf(location).page === "jobs") lastList = location.pathname + location.search;
}

/** Return the address of the list of jobs, as it was searched and filtered last. */
export function listPath() {
  return lastList;
}

/** Return the query of the address. */
export function query() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** Make a link inside the console; with a modifier key it opens as any link does. */
export function link(path, attributes, ...children) {
  const on = {
    ...attributes.on,
    click: (event) => {
      if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
        return;
      event.preventDefault();
      go(path);
    },
  };
  return element("a", { ...attributes, href: path, on }, ...children);
}

/** Return the address of a job's tab. */
export function jobPath(name, tab = "overview") {
  return `/console/jobs/${encodeURIComponent(name)}${tab === "overview" ? "" : `/${tab}`}`;
}

/** Return the address of a tuning job. */
export function tuningPath(name) {
  return `/console/tuning/${encodeURIComponent(name)}`;
}

function placeOf({ pathname }) {
  for (const [pattern, make] of ROUTES) {
    const found = pattern.exec(pathname);
    if (found) return make(found);
  }
  return { page: "nowhere" };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
