// Signing in: a token becomes a session's cookie. A link with a one-time code has it behind the #, which reaches no log.

import { post } from "./base/api.js";
import { element } from "./base/element.js";
import { copyButton } from "./base/places.js";
import { themeButton } from "./shell.js";

const CODE = /^#code=(.+)$/;

/** Sign in by the code of the address, if it has one; returns the session or null. */
export async function signInByLink() {
  const found = CODE.exec(location.hash);
  if (!found) return null;
  history.replaceState({}, "", location.pathname + location.search);
  try {
    return await post("session", { code: decodeURIComponent(found[1]) });
  } catch (error) {
    error.wasLink = true;
    throw error;
  }
}

/** Make the page; `signedIn` gets the session. */
export function signInPage(said, signedIn) {
  const token = element("input", {
    type: "password",
    id: "token",
    name: "token",
    autocomplete: "current-password",
    required: true,
    "aria-describedby": "wrong",
    spellcheck: "false",
  });
  const wrong = element("p", { class: "wrong small", id: "wrong", role: "alert" }, said);
  const button = element("button", { class: "button button-main", type: "submit" }, "Sign in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    wrong.textContent = "";
    try {
      signedIn(await post("session", { token: token.value.trim() }));
    } catch (error) {
      wrong.textContent = error.status
        ? `Not signed in: ${error.message}`
        : "The service does not answer. Is it running? Start it with: clary up";
      token.select();
    }
    button.disabled = false;
  };
  return element(
    "main",
    { class: "sign-in", id: "main" },
    element(
      "form",
      { on: { submit }, "aria-label": "Sign in" },
      element("img", { src: "/console/mark.svg", alt: "" }),
      element(
        "div",
        {},
        element("h1", {}, "Sign in to Clary"),
        element("p", { class: "soft" }, "Training jobs on your own machines."),
      ),
      element("label", { class: "field", for: "token" }, "Token", token),
      wrong,
      button,
      element(
        "div",
        { class: "help soft small" },
        element("p", {}, "On the machine of the service this command prints a link that signs you in:"),
        element(
          "div",
          { class: "command", style: { "margin-top": "8px" } },
          element("code", {}, "clary console"),
          copyButton(() => "clary console"),
        ),
      ),
    ),
    element("div", { style: { position: "fixed", top: "10px", right: "10px" } }, themeButton()),
  );
}
