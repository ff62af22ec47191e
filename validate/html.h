// Pieces of the report page that its files share (inside validate/ only).
#ifndef SPARDA_VALIDATE_HTML_H
#define SPARDA_VALIDATE_HTML_H

#include "validate/chart.h"
#include "validate/report.h"

const char *sp_html_text_at(json_t *o, const char *key); // "" if absent
void sp_html_element(sp_text *t, const char *tag, const char *attributes, const char *text);
void sp_html_number(sp_text *t, double x, const char *format); // a table cell; a dash if absent
void sp_html_caption(sp_text *t, const char *text);

// Decode: throughput of all ways to serve, the streams of one step, misses against slots, memory
// (html_serving.c). Nothing where the document has none of it.
void sp_html_serving(sp_text *t, json_t *root);

#endif
