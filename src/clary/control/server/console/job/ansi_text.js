// Text with a terminal's colours, as pieces: what a program prints in red is red here, and nothing else is obeyed.

const SEQUENCE = /\u001b\[([0-9;]*)m/g;
// Whatever else a terminal would obey (ECMA-48): commands with other parameters or ends, titles and links, lone escapes.
const OTHERS =
  /\u001b\[(?![0-9;]*m)[0-?]*[ -/]*[@-~]?|\u001b[\]PX^_][^\u0007\u001b]*(?:\u0007|\u001b\\)?|\u001b(?!\[)[ -/]*[0-~]?|[\u0080-\u009f]/g;
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

/** Return the text without any escape. */
export function plainText(text) {
  return text.replace(OTHERS, "").replace(SEQUENCE, "");
}

/** Return pieces `{text, kind}`; the kind is a class name, empty for what has no colour. */
export function colouredPieces(text) {
  const clean = text.replace(OTHERS, "");
  if (!clean.includes("\u001b")) return [{ text: clean, kind: "" }];
  const pieces = [];
  let style = { colour: "", isBold: false };
  let from = 0;
  for (const found of clean.matchAll(SEQUENCE)) {
    add(pieces, clean.slice(from, found.index), style);
    style = styled(style, found[1]);
    from = found.index + found[0].length;
  }
  add(pieces, clean.slice(from), style);
  return pieces;
}

function add(pieces, text, { colour, isBold }) {
  if (!text) return;
  pieces.push({ text, kind: [colour && `ansi-${colour}`, isBold && "ansi-bold"].filter(Boolean).join(" ") });
}

function styled(before, codes) {
  const style = { ...before };
  const numbers = codes.split(";").map(Number);
  for (let index = 0; index < numbers.length; index++) {
    const code = numbers[index];
    if (code === 0) Object.assign(style, { colour: "", isBold: false });
    else if (code === 1) style.isBold = true;
    else if (code === 22) style.isBold = false;
    else if (code === 39) style.colour = "";
    else if (code >= 30 && code <= 37) style.colour = NAMES[code - 30];
    else if (code >= 90 && code <= 97) style.colour = NAMES[code - 90];
    else if (code === 38 || code === 48) {
      // Of the other palettes the first sixteen are these; the rest stays as the text around it.
      if (numbers[index + 1] === 5 && code === 38 && numbers[index + 2] < 16)
        style.colour = NAMES[numbers[index + 2] % 8];
      index += numbers[index + 1] === 2 ? 4 : 2;
    }
  }
  return style;
}
