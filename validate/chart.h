// Inline SVG for the report page: lines over an axis, horizontal bars on a logarithmic scale,
// grouped columns. Everything scales with its container and prints in grey.
#ifndef SPARDA_CHART_H
#define SPARDA_CHART_H

#include "common/util.h"

typedef struct sp_series {
    const char *name, *colour;
    const double *y; // NAN: a gap
    bool dashed;
} sp_series;

// Text with &, <, > and quotes replaced.
void sp_html_escape(sp_text *t, const char *s);
// Names and colours, as HTML below a chart.
void sp_chart_legend(sp_text *t, const sp_series *s, int n);
// y from 0 to 1 over n points with labels; about `ticks` of them are written.
void sp_chart_lines(sp_text *t, const char *alt, const sp_series *s, int n_series,
                    const char *const *labels, int n, int ticks, const char *x_title,
                    const char *y_title);
// The same with y from 0 to `top`, in per cent.
void sp_chart_scaled_lines(sp_text *t, const char *alt, const sp_series *s, int n_series,
                           const char *const *labels, int n, int ticks, const char *x_title,
                           const char *y_title, double top);
// One bar a value, its label in front and the number behind; log10 axis.
typedef struct sp_bar {
    char label[64];
    double value;
    double mark; // a line across the bar's row, sp_chart_bars only; NAN: none
    const char *colour;
} sp_bar;
void sp_chart_log_bars(sp_text *t, const char *alt, const sp_bar *b, int n, const char *unit);
// The same on a linear axis from 0.
void sp_chart_bars(sp_text *t, const char *alt, const sp_bar *b, int n, const char *unit);
// Spans of time in n_rows named rows.
typedef struct sp_span {
    int row;
    double from, to;
    char title[48];
    const char *colour;
} sp_span;
void sp_chart_timeline(sp_text *t, const char *alt, const char *const *rows, int n_rows,
                       const sp_span *span, int n, const char *unit);
// Groups of n_series columns, y from 0 to 1.
void sp_chart_columns(sp_text *t, const char *alt, const sp_series *s, int n_series,
                      const char *const *groups, int n);

#endif
