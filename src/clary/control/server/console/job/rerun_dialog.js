// Running a job again, as it is or with other values: a clone is the same with what was changed.

import { get, ofJob, post } from "../base/api.js";
import { element } from "../base/element.js";
import { closeButton, openDialog, toast } from "../base/places.js";
import { go, jobPath } from "../base/router.js";

const OWN = /^sagemaker_/; // hyperparameters that SDKs add for themselves

/** Ask what the new job is to be like, and create it. */
export async function askRerun(facts) {
  let request;
  try {
    ({ request } = await get(ofJob(facts.name, "request")));
  } catch (error) {
    toast(error.message, "warning");
    return;
  }
  const all = Object.entries(request.HyperParameters ?? {}).filter(([key]) => !OWN.test(key));
  const before = Object.fromEntries(all.filter(isOneLine));
  const kept = all.filter((pair) => !isOneLine(pair)).map(([key]) => key);
  const resources = request.ResourceConfig ?? {};
  const name = element("input", { type: "text", placeholder: "A name with the time of now", maxlength: 63 });
  const values = element("textarea", { rows: 6, spellcheck: "false" }, lines(before));
  const type = element("input", { type: "text", value: resources.InstanceType ?? "" });
  const amount = element("input", { type: "number", min: 1, value: resources.InstanceCount ?? "" });
  const wrong = element("p", { class: "reason-bad", role: "alert" });
  const run = element("button", { class: "button button-main", type: "submit" }, "Run it");
  const submit = async (dialog) => {
    run.disabled = true;
    wrong.textContent = "";
    try {
      const wanted = {
        name: name.value.trim() || null,
        hyperparameters: changed(before, parsed(values.value)),
        instance_type: type.value && type.value !== resources.InstanceType ? type.value.trim() : null,
        instance_count: Number(amount.value) && Number(amount.value) !== resources.InstanceCount ? Number(amount.value) : null,
      };
      const made = await post(ofJob(facts.name, "rerun"), wanted);
      dialog.close();
      toast([`${made.name} is created`, ...made.notes].join("; "));
      go(jobPath(made.name));
    } catch (error) {
      wrong.textContent = error.message;
      run.disabled = false;
    }
  };
  const field = (text, input) => element("label", { class: "field" }, element("span", {}, text), input);
  const checkpoints = request.CheckpointConfig?.S3Uri;
  const parts = [
    field("Name", name),
    field("Hyperparameters, one per line: name = value", values),
    kept.length > 0 && element("p", { class: "soft" }, `These stay as they are: ${kept.join(", ")}.`),
    !resources.InstanceGroups && field("Instance type", type),
    !resources.InstanceGroups && field("Hosts", amount),
    checkpoints &&
      element("p", { class: "soft" }, `It goes on from the checkpoints of this job, at ${checkpoints}.`),
    wrong,
  ].filter(Boolean);
  openDialog(`Run ${facts.name} again`, parts, { submit, buttons: [closeButton("Cancel"), run] });
}

/** Whether a pair is read again as it is written: values of many lines are not. */
function isOneLine([key, value]) {
  const [found] = Object.entries(readable(`${key} = ${value}`));
  return found?.[0] === key && found[1] === value;
}

function readable(text) {
  try {
    return parsed(text);
  } catch {
    return {};
  }
}

function lines(values) {
  return Object.entries(values)
    .map(([key, value]) => `${key} = ${value}`)
    .join("\n");
}

function parsed(text) {
  const found = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`Expected name = value, got: ${line.trim()}`);
    found[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return found;
}

/** Return what differs: values that the page hides stay as they are, since they are not sent. */
function changed(before, after) {
  const missing = Object.keys(before).filter((key) => !(key in after));
  if (missing.length) throw new Error(`Hyperparameters can be changed and added here, not taken away: ${missing.join(", ")}`);
  return Object.fromEntries(Object.entries(after).filter(([key, value]) => before[key] !== value));
}
