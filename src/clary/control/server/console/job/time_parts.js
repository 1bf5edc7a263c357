// What the time of a host goes into: a colour and a word each.

const PARTS = {
  productive: ["Productive", "productive"],
  queued: ["Queued", "queued"],
  starting: ["Starting", "starting"],
  downloading: ["Downloading", "downloading"],
  restoring: ["Restoring checkpoints", "restoring"],
  installing: ["Installing", "installing"],
  rendezvous: ["Rendezvous", "rendezvous"],
  lost_to_restart: ["Lost to a restart", "lost"],
  lost_to_failure: ["Lost to the failure", "lost"],
  lost_to_stop: ["Lost: stopped, nothing kept", "lost"],
  stalled: ["Stalled", "stalled"],
  checkpointing: ["Storing checkpoints", "checkpointing"],
  stopping: ["Stopping", "stopping"],
  uploading: ["Uploading", "uploading"],
  idle_waiting: ["Waiting for other hosts", "idle"],
};

/** Return a part's word. */
export function partWord(part) {
  return PARTS[part]?.[0] ?? part.replaceAll("_", " ");
}

/** Return a part's colour. */
export function partColour(part) {
  return `var(--part-${PARTS[part]?.[1] ?? "queued"})`;
}
