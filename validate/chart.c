// See chart.h. Coordinates are in the units of the viewBox; one decimal is enough on any screen.
#include "validate/chart.h"

#include <math.h>
#include <string.h>

enum { W = 460, H = 240, LEFT = 40, RIGHT = 10, TOP = 12, BOTTOM = 40 };

void sp_html_escape(sp_text *t, const char *s) {
    for (; s && *s; s++) {
        const char *e = *s == '&'    ? "&amp;"
                        : *s == '<'  ? "&lt;"
                        : *s == '>'  ? "&gt;"
                        : *s == '"'  ? "&quot;"
                        : *s == '\'' ? "&#39;"
                                     : NULL;
        if (e)
            sp_text_add(t, "%s", e);
        else
            sp_text_bytes(t, s, 1);
    }
}

static void open_svg(sp_text *t, const char *alt, int height) {
    sp_text_add(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", W, height);
    sp_html_escape(t, alt);
    sp_text_add(t, "\">");
}

static void label(sp_text *t, double x, double y, const char *anchor, const char *class,
                  const char *s) {
    sp_text_add(t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">", x, y, anchor,
                class);
    sp_html_escape(t, s);
    sp_text_add(t, "</text>");
}

static double y_at(double v) {
    return TOP + (1 - v) * (H - TOP - BOTTOM);
}

static void unit_axis(sp_text *t, const char *y_title, double top) {
    for (int i = 0; i <= 5; i++) {
        char s[16];
        double y = y_at(i / 5.0);
        sp_text_add(t, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid%s\"/>", LEFT,
                    W - RIGHT, y, y, i ? "" : " axis");
        if (top == 1)
            snprintf(s, sizeof s, "%.1f", i / 5.0);
        else
            snprintf(s, sizeof s, "%.3g%%", 100 * top * i / 5.0);
        label(t, LEFT - 6, y + 4, "end", "tick", s);
    }
    sp_text_add(t,
                "<text transform=\"translate(10 %.1f) rotate(-90)\" text-anchor=\"middle\" "
                "class=\"title\">",
                y_at(0.5));
    sp_html_escape(t, y_title);
    sp_text_add(t, "</text>");
}

void sp_chart_legend(sp_text *t, const sp_series *s, int n) {
    sp_text_add(t, "<p class=\"legend\">");
    for (int i = 0; i < n; i++) {
        sp_text_add(t, "<span><i style=\"border-color:%s;border-style:%s\"></i>", s[i].colour,
                    s[i].dashed ? "dashed" : "solid");
        sp_html_escape(t, s[i].name);
        sp_text_add(t, "</span>");
    }
    sp_text_add(t, "</p>");
}

static double x_at(int i, int n) {
    double width = W - LEFT - RIGHT - 20;
    return LEFT + 10 + (n > 1 ? width * i / (n - 1) : width / 2);
}

static void one_line(sp_text *t, const sp_series *s, int n, double top) {
    bool open = false;
    sp_text_add(t, "<g stroke=\"%s\" fill=\"%s\"><path fill=\"none\" stroke-width=\"2\"%s d=\"",
                s->colour, s->colour, s->dashed ? " stroke-dasharray=\"4 4\"" : "");
    for (int i = 0; i < n; i++) {
        if (!isfinite(s->y[i])) {
            open = false;
            continue;
        }
        sp_text_add(t, "%s%.1f %.1f", open ? "L" : "M", x_at(i, n),
                    y_at(fmin(fmax(s->y[i] / top, 0), 1)));
        open = true;
    }
    sp_text_add(t, "\"/>");
    for (int i = 0; i < n && !s->dashed && n <= 40; i++)
        if (isfinite(s->y[i]))
            sp_text_add(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>", x_at(i, n),
                        y_at(fmin(fmax(s->y[i] / top, 0), 1)));
    sp_text_add(t, "</g>");
}

void sp_chart_lines(sp_text *t, const char *alt, const sp_series *s, int n_series,
                    const char *const *labels, int n, int ticks, const char *x_title,
                    const char *y_title) {
    sp_chart_scaled_lines(t, alt, s, n_series, labels, n, ticks, x_title, y_title, 1);
}

void sp_chart_scaled_lines(sp_text *t, const char *alt, const sp_series *s, int n_series,
                           const char *const *labels, int n, int ticks, const char *x_title,
                           const char *y_title, double top) {
    open_svg(t, alt, H);
    unit_axis(t, y_title, top);
    int step = n > ticks ? (n + ticks - 1) / ticks : 1;
    for (int i = 0; i < n; i += step)
        label(t, x_at(i, n), H - BOTTOM + 16, "middle", "tick", labels[i]);
    label(t, (LEFT + W - RIGHT) / 2.0, H - 6, "middle", "title", x_title);
    for (int i = n_series - 1; i >= 0; i--) one_line(t, &s[i], n, top); // the first one on top
    sp_text_add(t, "</svg>");
    sp_chart_legend(t, s, n_series);
}

void sp_chart_log_bars(sp_text *t, const char *alt, const sp_bar *b, int n, const char *unit) {
    enum { NAME = 178, ROW = 24, NUMBER = 58 };
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++)
        if (b[i].value > 0 && isfinite(b[i].value)) {
            lo = fmin(lo, floor(log10(b[i].value) - 0.05));
            hi = fmax(hi, ceil(log10(b[i].value)));
        }
    if (!isfinite(lo)) lo = -1, hi = 0;
    if (hi <= lo) hi = lo + 1;
    int height = TOP + n * ROW + BOTTOM;
    double scale = (W - NAME - NUMBER) / (hi - lo);
    open_svg(t, alt, height);
    int step = hi - lo > 6 ? 2 : 1;
    for (int e = (int)lo; e <= (int)hi; e += step) {
        char s[16];
        double x = NAME + (e - lo) * scale;
        sp_text_add(t, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"grid\"/>", x, x,
                    TOP, height - BOTTOM);
        snprintf(s, sizeof s, "%g", pow(10, e));
        label(t, x, height - BOTTOM + 16, "middle", "tick", s);
    }
    for (int i = 0; i < n; i++) {
        char s[32];
        double y = TOP + i * ROW;
        bool some = b[i].value > 0 && isfinite(b[i].value);
        double w = some ? fmax((log10(b[i].value) - lo) * scale, 1) : 0;
        label(t, NAME - 6, y + 16, "end", "name", b[i].label);
        sp_text_add(t,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>",
                    NAME, y + 4, w, ROW - 8, b[i].colour);
        if (isfinite(b[i].value))
            snprintf(s, sizeof s, "%.3g", b[i].value);
        else
            snprintf(s, sizeof s, "n/a");
        label(t, NAME + w + 6, y + 16, "start", "value", s);
    }
    label(t, NAME + (W - NAME - NUMBER) / 2.0, height - 6, "middle", "title", unit);
    sp_text_add(t, "</svg>");
}

// A round number not below x, so that an axis to it has few round ticks.
static double round_above(double x) {
    double power = pow(10, floor(log10(x)));
    static const double steps[] = {1, 2, 4, 5, 10};
    for (int i = 0; i < 5; i++)
        if (steps[i] * power >= x * (1 - 1e-9)) return steps[i] * power;
    return 10 * power;
}

// Vertical grid of a linear axis from 0 to `top` over x0 .. x0+width, labels below.
static void linear_axis(sp_text *t, double x0, double width, double top, int bottom) {
    for (int i = 0; i <= 4; i++) {
        char s[24];
        double x = x0 + width * i / 4;
        sp_text_add(t, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"grid\"/>", x, x,
                    TOP, bottom);
        snprintf(s, sizeof s, top < 1e4 ? "%.4g" : "%.0f", top * i / 4);
        label(t, x, bottom + 16, "middle", "tick", s);
    }
}

void sp_chart_bars(sp_text *t, const char *alt, const sp_bar *b, int n, const char *unit) {
    enum { NAME = 186, ROW = 24, NUMBER = 54 };
    double top = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(b[i].value)) top = fmax(top, b[i].value);
        if (isfinite(b[i].mark)) top = fmax(top, b[i].mark);
    }
    top = top > 0 ? round_above(top) : 1;
    int height = TOP + n * ROW + BOTTOM;
    double width = W - NAME - NUMBER;
    open_svg(t, alt, height);
    linear_axis(t, NAME, width, top, height - BOTTOM);
    for (int i = 0; i < n; i++) {
        char s[32];
        double y = TOP + i * ROW, w = isfinite(b[i].value) ? fmax(b[i].value, 0) / top * width : 0;
        label(t, NAME - 6, y + 16, "end", "name", b[i].label);
        sp_text_add(t,
                    "<rect x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\" fill=\"%s\"/>",
                    NAME, y + 4, fmax(w, 0.8), ROW - 8, b[i].colour);
        double end = w;
        if (isfinite(b[i].mark)) {
            double x = NAME + fmax(b[i].mark, 0) / top * width;
            sp_text_add(t,
                        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#17202e\" "
                        "stroke-width=\"2\"/>",
                        x, x, y + 2, y + ROW - 2);
            end = fmax(end, x - NAME);
        }
        if (isfinite(b[i].value))
            snprintf(s, sizeof s, b[i].value < 100 ? "%.3g" : "%.0f", b[i].value);
        else
            snprintf(s, sizeof s, "n/a");
        label(t, NAME + end + 6, y + 16, "start", "value", s);
    }
    label(t, NAME + width / 2, height - 6, "middle", "title", unit);
    sp_text_add(t, "</svg>");
}

void sp_chart_timeline(sp_text *t, const char *alt, const char *const *rows, int n_rows,
                       const sp_span *span, int n, const char *unit) {
    enum { WIDE = 980, NAME = 66, ROW = 34, EDGE = 14 };
    double top = 0;
    for (int i = 0; i < n; i++)
        if (isfinite(span[i].to)) top = fmax(top, span[i].to);
    top = top > 0 ? top : 1;
    int height = TOP + n_rows * ROW + BOTTOM;
    double width = WIDE - NAME - EDGE;
    sp_text_add(t, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDE, height);
    sp_html_escape(t, alt);
    sp_text_add(t, "\">");
    linear_axis(t, NAME, width, top, height - BOTTOM);
    for (int r = 0; r < n_rows; r++)
        label(t, NAME - 8, TOP + r * ROW + ROW / 2.0 + 4, "end", "name", rows[r]);
    for (int i = 0; i < n; i++) {
        const sp_span *s = &span[i];
        if (!isfinite(s->from) || !isfinite(s->to) || s->row < 0 || s->row >= n_rows) continue;
        double x = NAME + fmax(s->from, 0) / top * width;
        sp_text_add(t,
                    "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\" "
                    "stroke=\"#fff\" stroke-width=\"0.6\"><title>",
                    x, TOP + s->row * ROW + 5, fmax((s->to - s->from) / top * width, 0.6), ROW - 10,
                    s->colour);
        sp_html_escape(t, s->title);
        sp_text_add(t, ", %.3f to %.3f ", s->from, s->to);
        sp_html_escape(t, unit);
        sp_text_add(t, "</title></rect>");
    }
    label(t, NAME + width / 2, height - 6, "middle", "title", unit);
    sp_text_add(t, "</svg>");
}

void sp_chart_columns(sp_text *t, const char *alt, const sp_series *s, int n_series,
                      const char *const *groups, int n) {
    open_svg(t, alt, H);
    unit_axis(t, "accuracy", 1);
    double group = (double)(W - LEFT - RIGHT) / n, column = group * 0.84 / n_series;
    for (int g = 0; g < n; g++) {
        double x0 = LEFT + g * group + group * 0.08;
        for (int i = 0; i < n_series; i++) {
            double v = s[i].y[g];
            if (!isfinite(v)) continue;
            double y = y_at(fmin(fmax(v, 0), 1));
            sp_text_add(t,
                        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\">"
                        "<title>",
                        x0 + i * column, y, column * 0.86, fmax(y_at(0) - y, 0.8), s[i].colour);
            sp_html_escape(t, s[i].name);
            sp_text_add(t, ", ");
            sp_html_escape(t, groups[g]);
            sp_text_add(t, ": %.3f</title></rect>", v);
        }
        label(t, x0 + group * 0.42, H - BOTTOM + 16, "middle", "tick", groups[g]);
    }
    sp_text_add(t, "</svg>");
    sp_chart_legend(t, s, n_series);
}
