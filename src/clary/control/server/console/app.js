// The console: signs in, then shows the page that the address names, one at a time.

import { connection, get, setCsrf } from "./base/api.js";
import { element, refill } from "./base/element.js";
import { clearKeys, listen } from "./base/keys.js";
import { empty, failure, tip } from "./base/places.js";
import { follow, go, link } from "./base/router.js";
import { comparePage } from "./compare_page.js";
import { hostsPage } from "./hosts_page.js";
import { jobPage } from "./job/job_page.js";
import { jobsPage } from "./jobs_page.js";
import { makeShell } from "./shell.js";
import { signInPage, signInByLink } from "./sign_in.js";
import { tuningJobPage } from "./tuning/tuning_job_page.js";
import { tuningPage } from "./tuning/tuning_page.js";

const PAGES = {
  jobs: jobsPage,
  job: jobPage,
  hosts: hostsPage,
  compare: comparePage,
  tuning: tuningPage,
  "tuning-job": tuningJobPage,
};
const place = document.querySelector("#shell");
let leaving = null; // ends what the open page does
let open = null; // {page, name, change}: moving between tabs of a job keeps its page

async function start() {
  try {
    const session = (await signInByLink()) ?? (await get("session"));
    setCsrf(session.csrf);
    showConsole(session);
  } catch (error) {
    if (error.status === 401 || error.status === 403) showSignIn(error.wasLink ? error.message : "");
    else refill(place, element("main", {}, failure(error, start)));
  }
}

function showSignIn(said = "") {
  leave();
  document.title = "Sign in · Clary";
  refill(
    place,
    signInPage(said, (session) => (setCsrf(session.csrf), showConsole(session))),
  );
  place.querySelector("input")?.focus();
}

let isFollowing = false;
let shell = null;

function showConsole(session) {
  shell = makeShell(session, () => showSignIn());
  refill(place, shell.element);
  listen();
  if (isFollowing) return window.dispatchEvent(new PopStateEvent("popstate"));
  isFollowing = true;
  follow((where) => shell && showPage(where));
}

function showPage(where) {
  tip(null, null);
  shell.mark(where.page);
  if (open?.page === where.page && open.name === where.name && open.change) return open.change(where);
  leave();
  const make = PAGES[where.page];
  if (!make) return refill(shell.main, nowhere());
  leaving = new AbortController();
  const made = make({ ...where, signal: leaving.signal });
  open = { page: where.page, name: where.name, change: made.change };
  document.title = `${made.title} · Clary`;
  refill(shell.main, made.element);
  window.scrollTo(0, 0);
  shell.main.focus({ preventScroll: true });
  made.shown?.();
}

function leave() {
  clearKeys();
  leaving?.abort();
  leaving = open = null;
}

function nowhere() {
  const back = link("/console/jobs", { class: "button" }, "See all jobs");
  return element(
    "div",
    {},
    element("div", { class: "page-head" }, element("h1", {}, "Not found")),
    empty("search", "There is no such page", "The address names nothing that the console shows.", back),
  );
}

connection.addEventListener("signed-out", () => {
  shell = null;
  showSignIn("The session has ended. Sign in again to go on where you were.");
});

window.addEventListener("clary-go", (event) => go(event.detail));
start();
