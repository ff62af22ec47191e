// Pickle stack machine (formats.md 3.2): builds values, calls nothing.
//
// A pickle is a program for a stack. The opcodes of protocols 2 to 4 that a torch file may hold are
// done here; GLOBAL names, REDUCE and BUILD are looked at, never executed: OrderedDict, tensors and
// parameters are recognised by name, everything else turns into an opaque value.
// Each opcode makes at most one value, so their number is bounded by the pickle's length;
// MAX_VALUES and MAX_ITEMS bound the memory.
#include "checkpoints/pt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_VALUES = 4 << 20,
    MAX_ITEMS = 16 << 20,
    MAX_JSON_VALUES = 10000,
    MAX_JSON_DEPTH = 16,
    BLOCK = 1024
};

typedef struct block {
    struct block *next;
    sp_pt_value value[BLOCK];
} block;

typedef struct tensor_node {
    struct tensor_node *next;
    sp_pt_tensor t;
} tensor_node;

struct sp_pickle {
    block *blocks;
    int64_t used;          // of the first block
    int64_t values, items; // made so far; items of all containers together
    tensor_node *tensors;
    sp_pt_value *root;
};

typedef struct machine {
    const uint8_t *p, *end, *start;
    const char *origin;
    sp_pickle *out;
    sp_pt_value **stack;
    int64_t depth, stack_cap;
    int64_t *mark; // stack depths
    int64_t marks, mark_cap;
    sp_pt_value **memo;
    int64_t memo_cap, memo_next;
} machine;

// ---- values -------------------------------------------------------------------------------------

static sp_status bad(const machine *m, const char *why) {
    return sp_error(SP_BAD_INPUT, "%s: malformed pickle at byte %lld: %s", m->origin,
                    (long long)(m->p - m->start), why);
}

// Grows *array (of `size` byte elements) to hold index `need`.
static sp_status reserve(void *array, int64_t *cap, int64_t need, size_t size) {
    if (need < *cap) return SP_OK;
    int64_t grown = need < 32 ? 64 : need * 2;
    void *old, *p;
    memcpy(&old, array, sizeof old);
    p = realloc(old, (size_t)grown * size);
    if (!p) return sp_error(SP_ENVIRONMENT, "out of memory for a pickle");
    memset((char *)p + (size_t)*cap * size, 0, (size_t)(grown - *cap) * size);
    memcpy(array, &p, sizeof p);
    *cap = grown;
    return SP_OK;
}

static sp_status new_value(machine *m, sp_pt_kind kind, sp_pt_value **out) {
    sp_pickle *s = m->out;
    if (++s->values > MAX_VALUES)
        return sp_error(SP_BAD_INPUT, "%s: the pickle holds more than %d values", m->origin,
                        MAX_VALUES);
    if (!s->blocks || s->used == BLOCK) {
        block *b;
        SP_TRY(sp_alloc(&b, 1, sizeof *b, "a pickle"));
        b->next = s->blocks;
        s->blocks = b;
        s->used = 0;
    }
    *out = &s->blocks->value[s->used++];
    (*out)->kind = kind;
    return SP_OK;
}

static sp_status push(machine *m, sp_pt_value *v) {
    if (m->depth >= MAX_VALUES) return bad(m, "the stack grows without end");
    SP_TRY(reserve(&m->stack, &m->stack_cap, m->depth, sizeof *m->stack));
    m->stack[m->depth++] = v;
    return SP_OK;
}

static sp_status push_new(machine *m, sp_pt_kind kind, sp_pt_value **out) {
    sp_pt_value *v;
    SP_TRY(new_value(m, kind, &v));
    if (out) *out = v;
    return push(m, v);
}

static sp_status push_int(machine *m, int64_t i) {
    sp_pt_value *v;
    SP_TRY(push_new(m, SP_PT_INT, &v));
    v->u.i = i;
    return SP_OK;
}

static sp_status push_text(machine *m, sp_pt_kind kind, const uint8_t *data, int64_t n) {
    sp_pt_value *v;
    SP_TRY(push_new(m, kind, &v));
    v->u.text = (sp_pt_text){(const char *)data, n};
    return SP_OK;
}

// An object made by `maker`, as far as we can tell.
static sp_status push_opaque(machine *m, const sp_pt_value *maker) {
    sp_pt_value *v;
    SP_TRY(push_new(m, SP_PT_OPAQUE, &v));
    if (maker && (maker->kind == SP_PT_GLOBAL || maker->kind == SP_PT_OPAQUE))
        v->u.text = maker->u.text;
    return SP_OK;
}

// Values above the topmost mark belong to it: nothing may be popped from below.
static sp_status need(const machine *m, int64_t n) {
    int64_t floor = m->marks ? m->mark[m->marks - 1] : 0;
    return m->depth - floor < n ? bad(m, "the stack is too short") : SP_OK;
}

static sp_pt_value *pop(machine *m) {
    return m->stack[--m->depth];
}
static sp_pt_value *top(const machine *m) {
    return m->stack[m->depth - 1];
}

// Removes the topmost mark; the `n` values above it stay at stack[depth].
static sp_status pop_mark(machine *m, int64_t *n) {
    if (!m->marks) return bad(m, "a mark is missing");
    int64_t at = m->mark[--m->marks];
    *n = m->depth - at;
    m->depth = at;
    return SP_OK;
}

static sp_status append(machine *m, sp_pt_value *list, sp_pt_value *const *items, int64_t n) {
    if ((m->out->items += n) > MAX_ITEMS) return bad(m, "it fills its containers again and again");
    for (int64_t i = 0; i < n; i++) {
        SP_TRY(reserve(&list->u.list.item, &list->u.list.cap, list->u.list.n,
                       sizeof *list->u.list.item));
        list->u.list.item[list->u.list.n++] = items[i];
    }
    return SP_OK;
}

// Items for a container on the stack; an opaque one swallows them.
static sp_status add_items(machine *m, sp_pt_kind kind, int64_t first, int64_t n) {
    SP_TRY(need(m, 1));
    if (kind == SP_PT_DICT && n % 2) return bad(m, "a key without a value");
    sp_pt_value *to = top(m);
    if (to->kind == SP_PT_OPAQUE) return SP_OK;
    if (to->kind != kind) return bad(m, "items are added to something that holds none");
    return append(m, to, m->stack + first, n);
}

static sp_status collect(machine *m, sp_pt_kind kind, int64_t n) {
    sp_pt_value *v;
    if (kind == SP_PT_DICT && n % 2) return bad(m, "a key without a value");
    SP_TRY(new_value(m, kind, &v));
    SP_TRY(append(m, v, m->stack + m->depth, n));
    return push(m, v);
}

// ---- torch's objects ----------------------------------------------------------------------------

static const struct {
    const char *storage, *name;
    int64_t size;
} dtypes[] = {
    [SP_PT_BF16] = {"torch BFloat16Storage", "bfloat16", 2},
    [SP_PT_F16] = {"torch HalfStorage", "float16", 2},
    [SP_PT_F32] = {"torch FloatStorage", "float32", 4},
    [SP_PT_F64] = {"torch DoubleStorage", "float64", 8},
    [SP_PT_U8] = {"torch ByteStorage", "uint8", 1},
    [SP_PT_I8] = {"torch CharStorage", "int8", 1},
    [SP_PT_I16] = {"torch ShortStorage", "int16", 2},
    [SP_PT_I32] = {"torch IntStorage", "int32", 4},
    [SP_PT_I64] = {"torch LongStorage", "int64", 8},
    [SP_PT_BOOLS] = {"torch BoolStorage", "bool", 1},
};
enum { N_DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *sp_pt_dtype_name(sp_pt_dtype t) {
    return dtypes[t].name;
}
int64_t sp_pt_dtype_size(sp_pt_dtype t) {
    return dtypes[t].size;
}

bool sp_pt_text_is(sp_pt_text t, const char *s) {
    return t.n == (int64_t)strlen(s) && memcmp(t.data, s, (size_t)t.n) == 0;
}

// GLOBAL texts are "module<separator>attribute" in the file's bytes; the separator is a newline.
static bool is_global(const sp_pt_value *v, const char *module_and_name) {
    if (v->kind != SP_PT_GLOBAL || v->u.text.n != (int64_t)strlen(module_and_name)) return false;
    for (int64_t i = 0; i < v->u.text.n; i++) {
        char c = v->u.text.data[i];
        if ((c == '\n' ? ' ' : c) != module_and_name[i]) return false;
    }
    return true;
}

static bool all_ints(const sp_pt_value *v) {
    if (v->kind != SP_PT_LIST || v->u.list.n > SP_PT_MAX_DIMS) return false;
    for (int64_t i = 0; i < v->u.list.n; i++)
        if (v->u.list.item[i]->kind != SP_PT_INT) return false;
    return true;
}

// ("storage", <type>, key, location, elements)
static sp_status push_persistent(machine *m, const sp_pt_value *id) {
    sp_pt_value *const *a = id->u.list.item;
    int which = N_DTYPES;
    if (id->kind == SP_PT_LIST && id->u.list.n >= 5 && a[0]->kind == SP_PT_TEXT &&
        sp_pt_text_is(a[0]->u.text, "storage") && a[2]->kind == SP_PT_TEXT &&
        a[4]->kind == SP_PT_INT && a[4]->u.i >= 0)
        for (which = 0; which < N_DTYPES && !is_global(a[1], dtypes[which].storage);) which++;
    if (which == N_DTYPES)
        return push_opaque(m, id->kind == SP_PT_LIST && id->u.list.n > 1 ? a[1] : NULL);
    sp_pt_value *v;
    SP_TRY(push_new(m, SP_PT_STORAGE, &v));
    v->u.storage = (sp_pt_storage){(sp_pt_dtype)which, a[2]->u.text, a[4]->u.i};
    return SP_OK;
}

// _rebuild_tensor_v2(storage, offset, size, stride, ...)
static sp_status push_tensor(machine *m, const sp_pt_value *maker, const sp_pt_value *args) {
    sp_pt_value *const *a = args->u.list.item, *v;
    if (args->u.list.n < 4 || a[0]->kind != SP_PT_STORAGE || a[1]->kind != SP_PT_INT ||
        !all_ints(a[2]) || !all_ints(a[3]) || a[2]->u.list.n != a[3]->u.list.n)
        return push_opaque(m, maker);
    tensor_node *t;
    SP_TRY(sp_alloc(&t, 1, sizeof *t, "a tensor description"));
    t->next = m->out->tensors;
    m->out->tensors = t;
    t->t.storage = a[0]->u.storage;
    t->t.offset = a[1]->u.i;
    t->t.dims = (int)a[2]->u.list.n;
    for (int i = 0; i < t->t.dims; i++) {
        t->t.shape[i] = a[2]->u.list.item[i]->u.i;
        t->t.stride[i] = a[3]->u.list.item[i]->u.i;
    }
    SP_TRY(push_new(m, SP_PT_TENSOR, &v));
    v->u.tensor = &t->t;
    return SP_OK;
}

// OrderedDict(), or OrderedDict([(key, value), ...])
static sp_status push_ordered_dict(machine *m, const sp_pt_value *args) {
    sp_pt_value *dict;
    SP_TRY(push_new(m, SP_PT_DICT, &dict));
    if (args->u.list.n != 1 || args->u.list.item[0]->kind != SP_PT_LIST) return SP_OK;
    const sp_pt_value *pairs = args->u.list.item[0];
    for (int64_t i = 0; i < pairs->u.list.n; i++) {
        const sp_pt_value *pair = pairs->u.list.item[i];
        if (pair->kind != SP_PT_LIST || pair->u.list.n != 2)
            return bad(m, "an OrderedDict is made of something else than pairs");
        SP_TRY(append(m, dict, pair->u.list.item, 2));
    }
    return SP_OK;
}

// callable(*args), for the callables we know.
static sp_status reduce(machine *m, sp_pt_value *callable, sp_pt_value *args) {
    if (args->kind != SP_PT_LIST) return push_opaque(m, callable);
    if (is_global(callable, "collections OrderedDict")) return push_ordered_dict(m, args);
    if (is_global(callable, "torch._utils _rebuild_tensor_v2") ||
        is_global(callable, "torch._utils _rebuild_tensor"))
        return push_tensor(m, callable, args);
    if ((is_global(callable, "torch._utils _rebuild_parameter") ||
         is_global(callable, "torch._utils _rebuild_parameter_with_state")) &&
        args->u.list.n >= 1)
        return push(m, args->u.list.item[0]);
    return push_opaque(m, callable);
}

// ---- opcodes ------------------------------------------------------------------------------------

static sp_status take(machine *m, int64_t n, const uint8_t **data) {
    if (n < 0 || n > m->end - m->p) return bad(m, "it ends in the middle of a value");
    *data = m->p;
    m->p += n;
    return SP_OK;
}

// A little-endian count of `bytes` bytes.
static sp_status take_number(machine *m, int bytes, uint64_t *v) {
    const uint8_t *p;
    SP_TRY(take(m, bytes, &p));
    *v = 0;
    for (int i = bytes - 1; i >= 0; i--) *v = *v << 8 | p[i];
    return SP_OK;
}

// A value of text or bytes with a length of `length_bytes` bytes in front.
static sp_status op_text(machine *m, sp_pt_kind kind, int length_bytes) {
    uint64_t n;
    const uint8_t *data;
    SP_TRY(take_number(m, length_bytes, &n));
    if (n > INT64_MAX) return bad(m, "it ends in the middle of a value");
    SP_TRY(take(m, (int64_t)n, &data));
    return push_text(m, kind, data, (int64_t)n);
}

// Two's complement integer of any length; what does not fit 64 bits is opaque.
static sp_status op_long(machine *m, int length_bytes) {
    uint64_t n, v = 0;
    const uint8_t *p;
    SP_TRY(take_number(m, length_bytes, &n));
    if (n > INT64_MAX) return bad(m, "it ends in the middle of a value");
    SP_TRY(take(m, (int64_t)n, &p));
    if (n > 8) return push_opaque(m, NULL);
    for (int i = (int)n - 1; i >= 0; i--) v = v << 8 | p[i];
    if (n && n < 8 && p[n - 1] & 0x80) v |= ~UINT64_C(0) << (8 * n);
    return push_int(m, (int64_t)v);
}

static sp_status op_float(machine *m) {
    const uint8_t *p;
    sp_pt_value *v;
    uint64_t bits = 0;
    SP_TRY(take(m, 8, &p));
    for (int i = 0; i < 8; i++) bits = bits << 8 | p[i]; // big-endian, unlike all the rest
    SP_TRY(push_new(m, SP_PT_FLOAT, &v));
    memcpy(&v->u.f, &bits, 8);
    return SP_OK;
}

// "module\nname\n"
static sp_status op_global(machine *m) {
    const uint8_t *start = m->p, *newline = NULL;
    for (int lines = 0; lines < 2; lines++) {
        newline = m->p < m->end ? memchr(m->p, '\n', (size_t)(m->end - m->p)) : NULL;
        if (!newline) return bad(m, "it ends in the middle of a name");
        m->p = newline + 1;
    }
    return push_text(m, SP_PT_GLOBAL, start, newline - start);
}

// The name comes as two texts (protocol 4). They lie apart in the file, so the parts that we know
// are told by their names and given a text of our own.
static sp_status op_stack_global(machine *m) {
    static const char *const known[] = {
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_tensor",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_parameter_with_state",
    };
    SP_TRY(need(m, 2));
    const sp_pt_value *name = pop(m), *module = pop(m);
    if (name->kind != SP_PT_TEXT || module->kind != SP_PT_TEXT)
        return bad(m, "a global's name is no text");
    sp_pt_text text = name->u.text;
    for (size_t i = 0; i < sizeof known / sizeof known[0] + N_DTYPES; i++) {
        size_t n_known = sizeof known / sizeof known[0];
        const char *full = i < n_known ? known[i] : dtypes[i - n_known].storage;
        const char *space = strchr(full, ' ');
        if (module->u.text.n == space - full &&
            memcmp(module->u.text.data, full, (size_t)(space - full)) == 0 &&
            sp_pt_text_is(name->u.text, space + 1))
            text = (sp_pt_text){full, (int64_t)strlen(full)};
    }
    return push_text(m, SP_PT_GLOBAL, (const uint8_t *)text.data, text.n);
}

static sp_status memo_put(machine *m, uint64_t index) {
    SP_TRY(need(m, 1));
    if (index >= MAX_VALUES) return bad(m, "a memo number is too large");
    SP_TRY(reserve(&m->memo, &m->memo_cap, (int64_t)index, sizeof *m->memo));
    m->memo[index] = top(m);
    return SP_OK;
}

static sp_status memo_get(machine *m, uint64_t index) {
    if (index >= (uint64_t)m->memo_cap || !m->memo[index])
        return bad(m, "a memo number that was never stored");
    return push(m, m->memo[index]);
}

static sp_status op_tuple(machine *m, int64_t n) {
    SP_TRY(need(m, n));
    m->depth -= n;
    return collect(m, SP_PT_LIST, n);
}

static sp_status op_bool(machine *m, bool b) {
    sp_pt_value *v;
    SP_TRY(push_new(m, SP_PT_BOOL, &v));
    v->u.b = b;
    return SP_OK;
}

// Items since the mark, in a new container, or added to the one below.
static sp_status op_marked(machine *m, sp_pt_kind kind, bool add) {
    int64_t n;
    SP_TRY(pop_mark(m, &n));
    return add ? add_items(m, kind, m->depth, n) : collect(m, kind, n);
}

static sp_status op_add(machine *m, sp_pt_kind kind, int64_t n) {
    SP_TRY(need(m, n + 1));
    m->depth -= n;
    return add_items(m, kind, m->depth, n);
}

static sp_status step(machine *m, uint8_t op, bool *stop) {
    uint64_t v;
    int64_t n;
    const uint8_t *skipped;
    switch (op) {
    case 0x80: // PROTO
        SP_TRY(take_number(m, 1, &v));
        return v < 2 || v > 5 ? bad(m, "only protocols 2 to 5 are read") : SP_OK;
    case 0x95:
        return take(m, 8, &skipped); // FRAME: a hint about lengths
    case '.':                        // STOP
        SP_TRY(need(m, 1));
        if (m->depth != 1 || m->marks) return bad(m, "values are left over at its end");
        m->out->root = pop(m);
        *stop = true;
        return SP_OK;
    case '(': // MARK
        if (m->marks >= MAX_VALUES) return bad(m, "too many marks");
        SP_TRY(reserve(&m->mark, &m->mark_cap, m->marks, sizeof *m->mark));
        m->mark[m->marks++] = m->depth;
        return SP_OK;
    case '0': // POP
        if (m->marks && m->mark[m->marks - 1] == m->depth) {
            m->marks--;
            return SP_OK;
        }
        SP_TRY(need(m, 1));
        m->depth--;
        return SP_OK;
    case '1':
        return pop_mark(m, &n); // POP_MARK
    case '2':                   // DUP
        SP_TRY(need(m, 1));
        return push(m, top(m));

    case 'N':
        return push_new(m, SP_PT_NONE, NULL);
    case 0x88:
        return op_bool(m, true);
    case 0x89:
        return op_bool(m, false);
    case 'J': // BININT, signed
        SP_TRY(take_number(m, 4, &v));
        return push_int(m, (int32_t)(uint32_t)v);
    case 'K': // BININT1
        SP_TRY(take_number(m, 1, &v));
        return push_int(m, (int64_t)v);
    case 'M': // BININT2
        SP_TRY(take_number(m, 2, &v));
        return push_int(m, (int64_t)v);
    case 0x8a:
        return op_long(m, 1); // LONG1
    case 0x8b:
        return op_long(m, 4); // LONG4
    case 'G':
        return op_float(m);
    case 'X':
        return op_text(m, SP_PT_TEXT, 4); // BINUNICODE
    case 0x8c:
        return op_text(m, SP_PT_TEXT, 1); // SHORT_BINUNICODE
    case 0x8d:
        return op_text(m, SP_PT_TEXT, 8); // BINUNICODE8
    case 'T':
        return op_text(m, SP_PT_TEXT, 4); // BINSTRING (Python 2)
    case 'U':
        return op_text(m, SP_PT_TEXT, 1); // SHORT_BINSTRING
    case 'B':
        return op_text(m, SP_PT_BYTES, 4); // BINBYTES
    case 'C':
        return op_text(m, SP_PT_BYTES, 1); // SHORT_BINBYTES
    case 0x8e:
        return op_text(m, SP_PT_BYTES, 8); // BINBYTES8
    case 0x96:
        return op_text(m, SP_PT_BYTES, 8); // BYTEARRAY8

    case ']': // EMPTY_LIST
    case ')': // EMPTY_TUPLE
    case 0x8f:
        return push_new(m, SP_PT_LIST, NULL); // EMPTY_SET
    case '}':
        return push_new(m, SP_PT_DICT, NULL); // EMPTY_DICT
    case 'l':                                 // LIST
    case 't':                                 // TUPLE
    case 0x91:
        return op_marked(m, SP_PT_LIST, false); // FROZENSET
    case 'd':
        return op_marked(m, SP_PT_DICT, false); // DICT
    case 0x85:
        return op_tuple(m, 1);
    case 0x86:
        return op_tuple(m, 2);
    case 0x87:
        return op_tuple(m, 3);
    case 'e': // APPENDS
    case 0x90:
        return op_marked(m, SP_PT_LIST, true); // ADDITEMS
    case 'u':
        return op_marked(m, SP_PT_DICT, true); // SETITEMS
    case 'a':
        return op_add(m, SP_PT_LIST, 1); // APPEND
    case 's':
        return op_add(m, SP_PT_DICT, 2); // SETITEM

    case 'q': // BINPUT
        SP_TRY(take_number(m, 1, &v));
        return memo_put(m, v);
    case 'r': // LONG_BINPUT
        SP_TRY(take_number(m, 4, &v));
        return memo_put(m, v);
    case 0x94:
        return memo_put(m, (uint64_t)m->memo_next++); // MEMOIZE
    case 'h':                                         // BINGET
        SP_TRY(take_number(m, 1, &v));
        return memo_get(m, v);
    case 'j': // LONG_BINGET
        SP_TRY(take_number(m, 4, &v));
        return memo_get(m, v);

    case 'c':
        return op_global(m);
    case 0x93:
        return op_stack_global(m);
    case 'R':    // REDUCE: callable, args
    case 0x81: { // NEWOBJ: class, args
        SP_TRY(need(m, 2));
        sp_pt_value *args = pop(m), *callable = pop(m);
        return reduce(m, callable, args);
    }
    case 0x92: { // NEWOBJ_EX: class, args, kwargs
        SP_TRY(need(m, 3));
        m->depth -= 3;
        return push_opaque(m, m->stack[m->depth]);
    }
    case 'b': // BUILD: object, state. The state of a known object adds nothing that we need.
        SP_TRY(need(m, 2));
        m->depth--;
        if (top(m)->kind == SP_PT_GLOBAL) return bad(m, "BUILD on a name");
        return SP_OK;
    case 'Q': { // BINPERSID
        SP_TRY(need(m, 1));
        const sp_pt_value *id = pop(m);
        return push_persistent(m, id);
    }
    default: {
        char why[64];
        m->p--;
        snprintf(why, sizeof why, "opcode 0x%02x is not one that torch files use", op);
        return bad(m, why);
    }
    }
}

sp_status sp_pickle_run(const uint8_t *bytes, int64_t n, const char *origin, sp_pickle **out) {
    *out = NULL;
    machine m = {.p = bytes, .start = bytes, .end = bytes + n, .origin = origin};
    SP_TRY(sp_alloc(&m.out, 1, sizeof *m.out, "a pickle"));
    sp_status st = reserve(&m.stack, &m.stack_cap, 0, sizeof *m.stack);
    for (bool stop = false; st == SP_OK && !stop;)
        st = m.p == m.end ? bad(&m, "it ends without a stop") : step(&m, *m.p++, &stop);
    free(m.stack);
    free(m.mark);
    free(m.memo);
    if (st == SP_OK)
        *out = m.out;
    else
        sp_pickle_free(m.out);
    return st;
}

void sp_pickle_free(sp_pickle *p) {
    if (!p) return;
    for (int64_t used = p->used; p->blocks; used = BLOCK) {
        block *b = p->blocks;
        for (int64_t i = 0; i < used; i++)
            if (b->value[i].kind == SP_PT_LIST || b->value[i].kind == SP_PT_DICT)
                free(b->value[i].u.list.item);
        p->blocks = b->next;
        free(b);
    }
    while (p->tensors) {
        tensor_node *t = p->tensors;
        p->tensors = t->next;
        free(t);
    }
    free(p);
}

const sp_pt_value *sp_pickle_root(const sp_pickle *p) {
    return p->root;
}

// ---- looking at values --------------------------------------------------------------------------

const sp_pt_value *sp_pt_get(const sp_pt_value *v, const char *key) {
    if (!v || v->kind != SP_PT_DICT) return NULL;
    for (int64_t i = v->u.list.n - 2; i >= 0; i -= 2) {
        const sp_pt_value *k = v->u.list.item[i];
        if (k->kind == SP_PT_TEXT && sp_pt_text_is(k->u.text, key)) return v->u.list.item[i + 1];
    }
    return NULL;
}

void sp_pt_describe(const sp_pt_value *v, char *text, size_t size) {
    switch (v->kind) {
    case SP_PT_NONE:
        snprintf(text, size, "None");
        break;
    case SP_PT_BOOL:
        snprintf(text, size, "%s", v->u.b ? "True" : "False");
        break;
    case SP_PT_INT:
        snprintf(text, size, "%" PRId64, v->u.i);
        break;
    case SP_PT_FLOAT:
        snprintf(text, size, "%g", v->u.f);
        break;
    case SP_PT_TEXT:
        snprintf(text, size, "'%.*s'", (int)(v->u.text.n < 200 ? v->u.text.n : 200),
                 v->u.text.data);
        break;
    case SP_PT_BYTES:
        snprintf(text, size, "%" PRId64 " bytes", v->u.text.n);
        break;
    case SP_PT_LIST:
        snprintf(text, size, "a list of %" PRId64, v->u.list.n);
        break;
    case SP_PT_DICT:
        snprintf(text, size, "a dictionary of %" PRId64, v->u.list.n / 2);
        break;
    case SP_PT_STORAGE:
        snprintf(text, size, "a storage");
        break;
    case SP_PT_TENSOR: {
        const sp_pt_tensor *t = v->u.tensor;
        size_t at = (size_t)snprintf(text, size, "a tensor %s [", dtypes[t->storage.dtype].name);
        for (int i = 0; i < t->dims && at < size; i++)
            at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i ? "," : "", t->shape[i]);
        if (at < size) snprintf(text + at, size - at, "]");
        break;
    }
    case SP_PT_GLOBAL:
    case SP_PT_OPAQUE: {
        int n = (int)(v->u.text.n < 120 ? v->u.text.n : 120);
        snprintf(text, size, n ? "an object of %.*s" : "an object%.*s", n, n ? v->u.text.data : "");
        break;
    }
    }
    for (char *p = text; *p; p++) // names come from the file
        if (*p == '\n')
            *p = '.';
        else if ((unsigned char)*p < 32 || *p == 127)
            *p = '?';
}

static json_t *to_json(const sp_pt_value *v, int depth, int *budget) {
    if (depth > MAX_JSON_DEPTH || --*budget < 0) return NULL;
    switch (v->kind) {
    case SP_PT_NONE:
        return json_null();
    case SP_PT_BOOL:
        return json_boolean(v->u.b);
    case SP_PT_INT:
        return json_integer(v->u.i);
    case SP_PT_FLOAT:
        return json_real(v->u.f); // NULL if not finite
    case SP_PT_TEXT:
        return json_stringn(v->u.text.data, (size_t)v->u.text.n); // NULL if no UTF-8
    case SP_PT_LIST: {
        json_t *list = json_array();
        for (int64_t i = 0; list && i < v->u.list.n; i++) {
            json_t *item = to_json(v->u.list.item[i], depth + 1, budget);
            if (item) json_array_append_new(list, item);
        }
        return list;
    }
    case SP_PT_DICT: {
        json_t *dict = json_object();
        for (int64_t i = 0; dict && i + 1 < v->u.list.n; i += 2) {
            const sp_pt_value *k = v->u.list.item[i];
            json_t *item = to_json(v->u.list.item[i + 1], depth + 1, budget);
            char *key = k->kind == SP_PT_TEXT ? strndup(k->u.text.data, (size_t)k->u.text.n) : NULL;
            if (key && item) json_object_set(dict, key, item);
            json_decref(item);
            free(key);
        }
        return dict;
    }
    default:
        return NULL;
    }
}

json_t *sp_pt_to_json(const sp_pt_value *v) {
    int budget = MAX_JSON_VALUES;
    return v->kind == SP_PT_DICT ? to_json(v, 0, &budget) : NULL;
}
