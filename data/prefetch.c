// The loader: one thread, a ring of `depth` + 1 samples. The extra one is the sample that the
// consumer holds, so that `depth` others can be read meanwhile.
#include "data/prefetch.h"
#include "common/util.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct slot {
    int32_t *tokens;
    int64_t n;
    uint64_t index;
    char id[128];
} slot;

struct sp_loader {
    const sp_sampler *sampler;
    sp_next_index next;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled, freed;
    slot *slot;
    int64_t slots;
    // Under the lock:
    int64_t head, count; // oldest full slot, full slots (the one the consumer holds included)
    bool held;           // the consumer holds slot[head]
    bool stop, end;      // asked to stop; nothing more comes
    sp_status status;    // of the reading that ended it
    char *error;
    // The consumer's:
    double waited;
};

// Fills slots until the indices end, a row cannot be read, or the loader closes.
static void *read_ahead(void *arg) {
    sp_loader *l = arg;
    sp_status st = SP_OK;
    for (int64_t tail = 0; st == SP_OK; tail = (tail + 1) % l->slots) {
        pthread_mutex_lock(&l->lock);
        while (l->count == l->slots && !l->stop) pthread_cond_wait(&l->freed, &l->lock);
        bool stop = l->stop;
        pthread_mutex_unlock(&l->lock);

        slot *s = &l->slot[tail];
        if (stop || !l->next(l->user, &s->index)) break;
        st = sp_sampler_read(l->sampler, s->index, s->tokens, &s->n, s->id);
        if (st != SP_OK) break;
        pthread_mutex_lock(&l->lock);
        l->count++;
        pthread_cond_signal(&l->filled);
        pthread_mutex_unlock(&l->lock);
    }
    pthread_mutex_lock(&l->lock);
    l->status = st;
    if (st != SP_OK) l->error = sp_strdup(sp_error_text()); // the text belongs to this thread
    l->end = true;
    pthread_cond_signal(&l->filled);
    pthread_mutex_unlock(&l->lock);
    sp_error_clear();
    return NULL;
}

static void free_loader(sp_loader *l) {
    for (int64_t i = 0; l->slot && i < l->slots; i++) free(l->slot[i].tokens);
    free(l->slot);
    free(l->error);
    pthread_cond_destroy(&l->filled);
    pthread_cond_destroy(&l->freed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

sp_status sp_loader_open(const sp_sampler *s, sp_next_index next, void *user, int64_t depth,
                         sp_loader **out) {
    sp_loader *l;
    *out = NULL;
    if (depth < 1 || depth > 1 << 20)
        return sp_error(SP_BAD_INPUT, "read-ahead of %lld samples; it must be 1 to 1048576",
                        (long long)depth);
    SP_TRY(sp_alloc(&l, 1, sizeof *l, "a loader"));
    l->sampler = s;
    l->next = next;
    l->user = user;
    l->slots = depth + 1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->filled, NULL);
    pthread_cond_init(&l->freed, NULL);
    sp_status st = SP_OK;
    SP_GO(sp_alloc(&l->slot, l->slots, sizeof *l->slot, "a loader"));
    for (int64_t i = 0; i < l->slots; i++)
        SP_GO(sp_alloc(&l->slot[i].tokens, sp_sampler_seq_len(s), sizeof(int32_t),
                       "a sequence read ahead"));
    if (pthread_create(&l->thread, NULL, read_ahead, l) != 0)
        st = sp_error(SP_ENVIRONMENT, "cannot start the thread that reads ahead");
done:
    if (st != SP_OK)
        free_loader(l);
    else
        *out = l;
    return st;
}

sp_status sp_loader_next(sp_loader *l, sp_sample *out) {
    *out = (sp_sample){0};
    double start = sp_now();
    pthread_mutex_lock(&l->lock);
    if (l->held) { // the sample of the last call goes back
        l->held = false;
        l->head = (l->head + 1) % l->slots;
        l->count--;
        pthread_cond_signal(&l->freed);
    }
    while (l->count == 0 && !l->end) pthread_cond_wait(&l->filled, &l->lock);
    sp_status st = SP_OK;
    if (l->count > 0) {
        const slot *s = &l->slot[l->head];
        l->held = true;
        *out = (sp_sample){.index = s->index, .tokens = s->tokens, .n = s->n, .id = s->id};
    } else if (l->status != SP_OK) {
        st = sp_error(l->status, "%s", l->error ? l->error : "out of memory while reading ahead");
    }
    pthread_mutex_unlock(&l->lock);
    l->waited += sp_now() - start;
    return st;
}

double sp_loader_waited(const sp_loader *l) {
    return l->waited;
}

void sp_loader_close(sp_loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->freed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    free_loader(l);
}
