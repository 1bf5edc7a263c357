// What charts over steps show together: as SharedTime, but places are steps of a program.

import { SharedTime } from "./shared_time.js";
import { ticks } from "./scales.js";

const LEAST_ZOOM = 2; // steps

/** The steps that the charts of a page show together. */
export class SharedSteps extends SharedTime {
  leastZoom = LEAST_ZOOM;

  /** Return about `amount` places of ticks. */
  ticks(amount) {
    return ticks(this.span(), amount).filter((step) => Number.isInteger(step));
  }

  /** Return what stands at a place. */
  words(at, isExact = false) {
    return isExact ? `step ${at.toLocaleString("en-GB")}` : at.toLocaleString("en-GB");
  }
}
