#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Text of unbounded length that survives out-of-memory: a fixed buffer backs the heap one.
typedef struct error_text {
    char *heap;
    char fixed[1024];
} error_text;

static _Thread_local error_text message, trace;

static const char *text_of(const error_text *t) {
    return t->heap ? t->heap : t->fixed;
}

static void text_reset(error_text *t) {
    free(t->heap);
    t->heap = NULL;
    t->fixed[0] = 0;
}

static void text_set(error_text *t, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    char *fresh = NULL;
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n >= 0 && (fresh = malloc((size_t)n + 1))) vsnprintf(fresh, (size_t)n + 1, fmt, again);
    va_end(again);
    text_reset(t); // after formatting: the arguments may point into the old text
    if (fresh)
        t->heap = fresh;
    else
        snprintf(t->fixed, sizeof t->fixed, "%s", fmt);
}

static void text_setf(error_text *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_set(t, fmt, ap);
    va_end(ap);
}

sp_status sp_error_at(const char *file, int line, sp_status code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    text_set(&message, fmt, ap);
    va_end(ap);
    text_setf(&trace, "  at %s:%d\n", file, line);
    return code;
}

sp_status sp_error_trace_at(const char *file, int line, sp_status code, const char *expr) {
    text_setf(&trace, "%s  at %s:%d  %s\n", text_of(&trace), file, line, expr);
    return code;
}

void sp_error_prefix(const char *fmt, ...) {
    char prefix[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    text_setf(&message, "%s: %s", prefix, text_of(&message));
}

const char *sp_error_text(void) {
    return text_of(&message);
}
const char *sp_error_trace(void) {
    return text_of(&trace);
}

void sp_error_clear(void) {
    text_reset(&message);
    text_reset(&trace);
}

void sp_problems_add(sp_problems *p, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    p->count++;
    size_t need = p->len + (n > 0 ? (size_t)n : 0) + 8;
    if (need > p->cap) {
        size_t cap = need * 2;
        char *grown = realloc(p->text, cap);
        if (!grown) { // the count still makes the input fail
            va_end(again);
            return;
        }
        p->text = grown;
        p->cap = cap;
    }
    p->len += (size_t)sprintf(p->text + p->len, "\n  - ");
    p->len += (size_t)vsnprintf(p->text + p->len, p->cap - p->len, fmt, again);
    va_end(again);
}

sp_status sp_problems_end(sp_problems *p, sp_status code, const char *heading_fmt, ...) {
    sp_status st = SP_OK;
    if (p->count > 0) {
        char heading[4096];
        va_list ap;
        va_start(ap, heading_fmt);
        vsnprintf(heading, sizeof heading, heading_fmt, ap);
        va_end(ap);
        st = sp_error(code, "%s:%s", heading, p->text ? p->text : " (out of memory)");
    }
    free(p->text);
    memset(p, 0, sizeof *p);
    return st;
}
