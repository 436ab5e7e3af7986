// How Sphinx orders what a search finds: a heading that says just that comes before pages that mention it.
var Scorer = {
  score: ([docname, title, anchor, description, score]) => (anchor ? score + 20 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
