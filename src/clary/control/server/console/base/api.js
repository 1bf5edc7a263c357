// Asks the service. What changes something carries the session's own token; a lost connection is told to listeners.

import { noteServiceTime } from "./service_time.js";

const PREFIX = "/clary/v1/";
const PATIENCE_MS = 30_000;

/** What the service refused, in its own words. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** That nobody answered, or that an answer broke off. */
export class ConnectionLost extends Error {}

/** Tells `signed-out`, and `lost` and `back` of the connection. */
export const connection = new EventTarget();

let csrf = "";
let isLost = false;

/** Remember the token that changes carry. */
export function setCsrf(token) {
  csrf = token;
}

/** Return the JSON of a page; `query` is a mapping whose empty values are left out. */
export function get(path, query = {}, signal = undefined) {
  return ask("GET", path + queryText(query), undefined, signal);
}

export function post(path, body = {}) {
  return ask("POST", path, body);
}

export function remove(path) {
  return ask("DELETE", path);
}

/** Return the address of a page, for links. */
export function address(path) {
  return PREFIX + path;
}

/** Return the path of a page of a job. */
export function ofJob(name, page = "") {
  return `jobs/${encodeURIComponent(name)}${page ? `/${page}` : ""}`;
}

async function ask(method, path, body, signal) {
  // What is not there is no error of the page: the browser's log stays empty, and the status comes in a header.
  const headers = { Accept: "application/json", "X-Clary-Quiet": "1" };
  if (method !== "GET") headers["X-Clary-Csrf"] = csrf;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const askedMs = Date.now();
  let response;
  let answer;
  try {
    response = await fetch(PREFIX + path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      cache: "no-store",
      signal: signal ? AbortSignal.any([signal, patience]) : patience,
    });
    noteServiceTime(response.headers.get("Date"), askedMs, Date.now());
    // A refusal is one without its words too; anything else that is not whole is no answer.
    answer = await response.json().catch((error) => {
      if (response.ok || signal?.aborted) throw error;
      return {};
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    lose();
    throw new ConnectionLost("the service does not answer");
  }
  regain();
  const status = Number(response.headers.get("X-Clary-Status") ?? response.status);
  if (response.ok && status === response.status) return answer;
  if (status === 401 && path !== "session") connection.dispatchEvent(new Event("signed-out"));
  throw new ApiError(status, answer.__type ?? "", answer.message ?? `the service answered ${status}`);
}

function queryText(query) {
  const wanted = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return wanted.length ? `?${new URLSearchParams(wanted)}` : "";
}

function lose() {
  if (!isLost) connection.dispatchEvent(new Event("lost"));
  isLost = true;
}

function regain() {
  if (isLost) connection.dispatchEvent(new Event("back"));
  isLost = false;
}
