// The table of the flips: searching, filtering, sorting, pages, word differences. Data become text nodes, never markup.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const one = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const shownNumber = new Intl.NumberFormat("en");
  const MISSING = "–";

  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };

  // On a narrow screen style sheets make cards of tables; said twice, the roles survive that.
  const roles = {
    table: "table", "thead, tbody, tfoot": "rowgroup", tr: "row", td: "cell",
    "th[scope=col]": "columnheader", "th[scope=row], th[scope=rowgroup]": "rowheader",
  };
  for (const [selector, role] of Object.entries(roles)) for (const element of all(selector)) element.setAttribute("role", role);

  // Only what can be scrolled needs to be reached by keyboard.
  const reachable = () => { for (const box of all(".scroll")) box.tabIndex = box.scrollWidth > box.clientWidth ? 0 : -1; };
  addEventListener("resize", reachable);
  reachable();

  for (const button of all(".show-all")) {
    const table = button.parentElement.querySelector("table");
    const more = button.textContent;
    button.addEventListener("click", () => {
      const short = table.classList.toggle("short");
      button.setAttribute("aria-expanded", String(!short));
      button.textContent = short ? more : button.dataset.fewer;
    });
  }

  const data = JSON.parse(one("#rows").textContent);
  const columns = data.columns;
  if (!columns.length) return;

  // --- what a cell says -------------------------------------------------------------------------------------------

  const valueOf = (column, row) => (column.names ? column.names[column.codes[row]] : column.values[row]);
  const quadrantOf = (column, value) =>
    column.key === "quadrant" && value !== null && Object.hasOwn(data.quadrants, value) ? data.quadrants[value] : null;
  const wordsOf = (column, value) => (value === null ? MISSING : quadrantOf(column, value)?.name ?? String(value));
  const textOf = (column, row) => wordsOf(column, valueOf(column, row));

  const lowered = columns.map((column) => column.names && column.names.map((value) => wordsOf(column, value).toLowerCase()));
  let haystack = null; // one lower-case line a row, made at the first search
  const lineOf = (row) =>
    columns.map((column, at) => (lowered[at] ? lowered[at][column.codes[row]] : textOf(column, row).toLowerCase())).join("\n");

  // --- word differences of generated text ---------------------------------------------------------------------------

  const segmenter = typeof Intl.Segmenter === "function" ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;
  const tokensOf = (text) => {
    const raw = segmenter ? Array.from(segmenter.segment(text), (part) => part.segment) : text.match(/\s+|[^\s]+/g) || [];
    const tokens = [];
    for (const part of raw) { // white space belongs to the word before it
      if (tokens.length && !part.trim()) tokens[tokens.length - 1] += part;
      else tokens.push(part);
    }
    return tokens;
  };

  const LARGEST = 4e6; // cells of the table of common subsequences; beyond it the whole middle counts as changed
  // For two lists of words: which stay, as two arrays of booleans.
  const kept = (before, after) => {
    const staysBefore = new Array(before.length).fill(false);
    const staysAfter = new Array(after.length).fill(false);
    let start = 0, endBefore = before.length, endAfter = after.length;
    while (start < endBefore && start < endAfter && before[start] === after[start]) {
      staysBefore[start] = staysAfter[start] = true;
      start++;
    }
    while (endBefore > start && endAfter > start && before[endBefore - 1] === after[endAfter - 1]) {
      staysBefore[--endBefore] = staysAfter[--endAfter] = true;
    }
    const height = endBefore - start, width = endAfter - start;
    if (!height || !width || height * width > LARGEST) return [staysBefore, staysAfter];
    const longest = new Uint16Array((height + 1) * (width + 1));
    for (let i = height - 1; i >= 0; i--) {
      for (let j = width - 1; j >= 0; j--) {
        const at = i * (width + 1) + j;
        const same = before[start + i] === after[start + j];
        longest[at] = same ? longest[at + width + 2] + 1 : Math.max(longest[at + width + 1], longest[at + 1]);
      }
    }
    for (let i = 0, j = 0; i < height && j < width;) {
      const at = i * (width + 1) + j;
      if (before[start + i] === after[start + j]) staysBefore[start + i++] = staysAfter[start + j++] = true;
      else if (longest[at + width + 1] >= longest[at + 1]) i++;
      else j++;
    }
    return [staysBefore, staysAfter];
  };

  const partsOf = (tokens, stays, changed) => {
    const parts = [];
    tokens.forEach((token, at) => {
      const kind = stays[at] ? "same" : changed;
      if (parts.length && parts[parts.length - 1].kind === kind) parts[parts.length - 1].text += token;
      else parts.push({ kind, text: token });
    });
    return parts;
  };
  const differences = (before, after) => {
    const words = [tokensOf(before), tokensOf(after)];
    const [first, second] = kept(...words.map((tokens) => tokens.map((token) => token.trim())));
    return [partsOf(words[0], first, "del"), partsOf(words[1], second, "ins")];
  };

  // --- long texts are shortened around what differs -------------------------------------------------------------------

  const LONG = 700, AROUND = 90;
  const cut = (text, length) => { // before a word if one begins nearby; never through a pair of surrogates
    const short = text.slice(0, length), at = short.search(/\s\S{0,20}$/);
    return at > 0 ? short.slice(0, at) : short.replace(/[\ud800-\udbff]$/, "");
  };
  const tail = (text, length) => {
    const short = text.slice(-length), found = /^\S{0,20}\s+/.exec(short);
    return found ? short.slice(found[0].length) : short.replace(/^[\udc00-\udfff]/, "");
  };
  const shorten = (parts) => {
    const shortened = parts.map(({ kind, text }, at) => {
      if (parts.length === 1 || kind !== "same" || text.length <= 3 * AROUND) return { kind, text };
      if (at === 0) return { kind, text: "… " + tail(text, AROUND) };
      if (at === parts.length - 1) return { kind, text: cut(text, AROUND) + " …" };
      return { kind, text: cut(text, AROUND) + " … " + tail(text, AROUND) };
    });
    const result = [];
    let left = LONG;
    for (const part of shortened) {
      if (part.text.length > left) {
        result.push({ kind: part.kind, text: cut(part.text, left) + " …" });
        break;
      }
      result.push(part);
      left -= part.text.length;
    }
    return result;
  };

  // --- one row --------------------------------------------------------------------------------------------------------

  const open = new Set(); // rows whose long texts are shown whole
  const pair = ["old_text", "new_text"].map((key) => columns.find((column) => column.key === key));
  const compared = (row) => {
    if (!pair[0] || !pair[1]) return new Map();
    const texts = pair.map((column) => valueOf(column, row));
    if (texts.some((text) => typeof text !== "string")) return new Map();
    const parts = differences(...texts);
    return new Map(pair.map((column, at) => [column, parts[at]]));
  };

  const cellOf = (column, row, marked) => {
    const cell = make("td", "", { role: "cell", class: column.kind, "data-name": column.name });
    const known = quadrantOf(column, valueOf(column, row));
    const text = textOf(column, row);
    const parts = marked.get(column) || [{ kind: "same", text }];
    const holder = make("bdi");
    if (known?.symbol) holder.append(make("b", known.symbol, { class: `symbol ${known.tone}`, "aria-hidden": "true" }), " ");
    for (const part of text.length > LONG && !open.has(row) ? shorten(parts) : parts) {
      const words = part.text.trimEnd();
      if (part.kind === "same") holder.append(part.text);
      else holder.append(make(part.kind, words), part.text.slice(words.length));
    }
    cell.append(holder);
    if (text.length > LONG) {
      const whole = open.has(row);
      const words = whole ? "show less" : `show all ${shownNumber.format(text.length)} characters`;
      const button = make("button", words, { type: "button", "aria-expanded": String(whole) });
      button.addEventListener("click", () => {
        if (!open.delete(row)) open.add(row);
        const line = button.closest("tr");
        const at = [...line.querySelectorAll("button")].indexOf(button);
        const fresh = lineFor(row);
        line.replaceWith(fresh);
        fresh.querySelectorAll("button")[at].focus();
      });
      cell.append(button);
    }
    return cell;
  };
  const lineFor = (row) => {
    const marked = compared(row);
    const line = make("tr", "", { role: "row" });
    line.append(...columns.map((column) => cellOf(column, row, marked)));
    return line;
  };

  // --- which rows, in which order ---------------------------------------------------------------------------------------

  const state = { query: "", quadrant: null, only: null, sorted: null, down: false, page: 0, size: 25 };
  const columnOf = (key) => columns.find((column) => column.key === key);
  const quadrantColumn = columnOf("quadrant");
  const collator = new Intl.Collator("en", { numeric: true });

  const ranks = new Map(); // column -> its rows' places in ascending order, missing ones NaN
  const ranksOf = (column) => {
    if (ranks.has(column)) return ranks.get(column);
    const values = column.names || column.values;
    const places = new Float64Array(values.length).fill(NaN);
    if (column.kind === "number") values.forEach((value, at) => { if (value !== null) places[at] = value; });
    else {
      const present = [...values.keys()].filter((at) => values[at] !== null);
      const words = values.map((value) => wordsOf(column, value));
      present.sort((a, b) => collator.compare(words[a], words[b]));
      let place = 0;
      present.forEach((at, number) => {
        if (number && words[at] !== words[present[number - 1]]) place = number;
        places[at] = place;
      });
    }
    const result = column.names ? Float64Array.from(column.codes, (code) => places[code]) : places;
    ranks.set(column, result);
    return result;
  };

  let found = [];
  const select = () => {
    const query = state.query.toLowerCase();
    if (query && !haystack) haystack = Array.from({ length: data.n }, (_, row) => lineOf(row));
    const wanted = Object.entries(state.only || {}).map(([key, text]) => [columnOf(key), text]);
    found = [];
    for (let row = 0; row < data.n; row++) {
      if (state.quadrant !== null && quadrantColumn.codes[row] !== state.quadrant) continue;
      if (query && !haystack[row].includes(query)) continue;
      if (!wanted.every(([column, text]) => valueOf(column, row) !== null && String(valueOf(column, row)) === text)) continue;
      found.push(row);
    }
    if (state.sorted) {
      const places = ranksOf(state.sorted), sign = state.down ? -1 : 1;
      found.sort((a, b) => {
        const [first, second] = [places[a], places[b]];
        if (first !== first || second !== second) return (first !== first) - (second !== second) || a - b; // missing ones last
        return sign * (first - second) || a - b;
      });
    }
    state.page = 0;
  };

  // --- showing them -------------------------------------------------------------------------------------------------------

  const body = one(".flips tbody"), hits = one("#hits"), place = one("#place"), chip = one("#only");
  const turn = Object.fromEntries(all("[data-page]").map((button) => [button.dataset.page, button]));
  const rows = (count) => (count === 1 ? "1 row" : shownNumber.format(count) + " rows");
  const draw = () => {
    const last = Math.max(0, Math.ceil(found.length / state.size) - 1);
    state.page = Math.min(state.page, last);
    const from = state.page * state.size;
    const shown = found.slice(from, from + state.size);
    body.replaceChildren(...shown.map(lineFor));
    const narrowed = state.query || state.quadrant !== null || state.only;
    const [first, end, count] = [from + 1, from + shown.length, found.length].map((number) => shownNumber.format(number));
    hits.textContent = !narrowed ? rows(data.n) : found.length ? `${count} of ${rows(data.n)}` : `none of ${rows(data.n)}`;
    place.textContent = found.length ? `${first} – ${end} of ${count}` : "no rows";
    for (const [name, button] of Object.entries(turn)) { // not `disabled`: that would lose the focus
      button.setAttribute("aria-disabled", String(state.page === (name === "first" || name === "previous" ? 0 : last)));
    }
    reachable();
    chip.hidden = !state.only;
    if (state.only) {
      const named = Object.entries(state.only).map(([key, text]) => `${columnOf(key).name} ${text}`);
      chip.textContent = `only ${named.join(", ")} ✕`;
      chip.setAttribute("aria-label", `Remove the filter: only ${named.join(", ")}`);
    }
  };
  const update = () => { select(); draw(); };

  for (const [name, button] of Object.entries(turn)) {
    button.addEventListener("click", () => {
      const last = Math.max(0, Math.ceil(found.length / state.size) - 1);
      const target = { first: 0, previous: state.page - 1, next: state.page + 1, last }[name];
      if (target < 0 || target > last || target === state.page) return;
      state.page = target;
      draw();
    });
  }
  one("#size").addEventListener("change", (event) => {
    const from = state.page * state.size;
    state.size = Number(event.target.value);
    state.page = Math.floor(from / state.size);
    draw();
  });

  let waiting = 0;
  one("#search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.query = event.target.value.trim(); update(); }, data.n > 2000 ? 200 : 30);
  });
  const choices = all('input[name="quadrant"]');
  for (const input of choices) {
    input.addEventListener("change", () => {
      state.quadrant = input.value === "" ? null : Number(input.value);
      update();
    });
  }
  chip.addEventListener("click", () => { state.only = null; update(); one("#search").focus(); });

  // numbers above that lead to their examples
  for (const link of all("a[data-where]")) {
    link.addEventListener("click", () => {
      const { quadrant, ...only } = JSON.parse(link.dataset.where);
      state.only = Object.keys(only).length ? only : null;
      state.quadrant = quadrant === undefined ? null : quadrantColumn.names.indexOf(quadrant);
      state.query = one("#search").value = "";
      for (const input of choices) input.checked = input.value === String(state.quadrant ?? "");
      update();
    });
  }

  const heads = all(".flips thead th");
  heads.forEach((head, at) => {
    const button = make("button", "", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const again = state.sorted === columns[at];
      state.down = again && !state.down;
      state.sorted = columns[at];
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      update();
    });
  });

  update();
})();
