// The frame around every page: where one can go, the colours, the state of the connection, signing out.

import { connection, remove } from "./base/api.js";
import { element } from "./base/element.js";
import { icon } from "./base/icons.js";
import { showKeys } from "./base/keys.js";
import { toast } from "./base/places.js";
import { link } from "./base/router.js";

const THEMES = ["system", "light", "dark"];
const DRAWINGS = { system: "system", light: "sun", dark: "moon" };
const PAGES = [
  ["jobs", "/console/jobs", "Jobs"],
  ["tuning", "/console/tuning", "Tuning"],
  ["hosts", "/console/hosts", "Hosts"],
];
const BELOW = { job: "jobs", compare: "jobs", "tuning-job": "tuning" }; // page -> the page in the list above

/** Make the frame. Returns its element, its `main`, and `mark(page)`, which says where one is. */
export function makeShell(session, signedOut) {
  const main = element("main", { id: "main", tabindex: "-1" });
  const links = PAGES.map(([page, path, text]) => [page, link(path, {}, text)]);
  const leave = async () => {
    try {
      await remove("session");
      signedOut();
    } catch (error) {
      toast(error.message, "warning");
    }
  };
  const top = element(
    "header",
    { class: "top" },
    link(
      "/console/jobs",
      { class: "brand", "aria-label": "Clary" },
      element("img", { src: "/console/mark.svg", alt: "" }),
      element("span", {}, "Clary"),
    ),
    element(
      "nav",
      { "aria-label": "Pages" },
      links.map(([, made]) => made),
    ),
    session.user && element("span", { class: "soft small wide-only" }, session.user),
    themeButton(),
    iconButton("key", "Keyboard keys", showKeys, "wide-only"),
    iconButton("out", "Sign out", leave),
  );
  const mark = (page) => {
    for (const [name, made] of links) {
      if (name === (BELOW[page] ?? page)) made.setAttribute("aria-current", "page");
      else made.removeAttribute("aria-current");
    }
  };
  return { element: element("div", {}, top, connectionNotice(), main), main, mark };
}

function iconButton(drawing, text, act, extra = "") {
  return element(
    "button",
    { class: `icon-button ${extra}`, type: "button", "aria-label": text, title: text, on: { click: act } },
    icon(drawing),
  );
}

/** Make the switch between the system's colours, light and dark. */
export function themeButton() {
  const button = element("button", { class: "icon-button", type: "button" });
  const show = () => {
    const theme = currentTheme();
    button.replaceChildren(icon(DRAWINGS[theme]));
    button.setAttribute("aria-label", `Colours: ${theme}`);
    button.title = `Colours: ${theme}`;
  };
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("clary-theme", next);
    } catch {
      // Storage is blocked: the choice lasts until the page is left.
    }
    show();
  });
  show();
  return button;
}

function currentTheme() {
  return document.documentElement.dataset.theme ?? "system";
}

function connectionNotice() {
  const again = () => connection.dispatchEvent(new Event("retry"));
  const notice = element(
    "div",
    { class: "notice", role: "status", hidden: true },
    icon("warning"),
    "The connection to the service is lost. What you see is as old as that; it is tried again by itself.",
    element("button", { class: "button button-small", type: "button", on: { click: again } }, "Try now"),
  );
  connection.addEventListener("lost", () => (notice.hidden = false));
  connection.addEventListener("back", () => (notice.hidden = true));
  return notice;
}
