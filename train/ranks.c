// Ranks over MPI, or one process alone. See ranks.h.
//
// Sums do not use MPI_Allreduce: its order of additions is the library's choice. Each rank receives
// one share of every buffer, adds it in rank order, and hands the result to all: the same traffic
// as a ring, with an order that is ours.
//
// While ranks are open, every MPI call is one that does not block, made under the heartbeat's lock:
// see heartbeat.h.
#include "train/ranks.h"

#include "common/build.h"
#include "common/util.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if SPARDA_HAVE_MPI
#include "train/heartbeat.h"
#endif

static struct {
    sp_ranks ranks;
    bool open;
    bool mpi;       // MPI was started here
    bool agreed;    // the present failure is known to all ranks
    bool reports;   // this rank prints the present error
    bool connected; // sp_ranks_connect: gradients are summed by the backends
    float *values;  // the host copy of a tensor to be summed
    float *share;   // what each rank sends of this rank's share
    int64_t values_cap, share_cap;
} self = {.reports = true};

// ---- launchers ----------------------------------------------------------------------------------

static bool number(sp_getenv get, const char *name, int64_t *out) {
    const char *s = get(name);
    if (!s || !*s) return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end || v < 0) return false;
    *out = v;
    return true;
}

sp_launcher sp_launcher_detect(sp_getenv get) {
    // Inner launchers first: mpirun inside a Slurm job leaves the job's variables visible.
    static const struct {
        const char *name, *size, *rank;
    } known[] = {
        {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"PMI", "PMI_SIZE", "PMI_RANK"},
        {"PMIx", NULL, "PMIX_RANK"},
        {"PALS", NULL, "PALS_RANKID"},
        {"PALS", NULL, "PALS_LOCAL_RANKID"},
        {"Hydra", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"},
    };
    sp_launcher l = {.rank = -1};
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !l.name; i++) {
        int64_t size = 0, rank = -1;
        bool has_size = known[i].size && number(get, known[i].size, &size);
        bool has_rank = number(get, known[i].rank, &rank);
        if (has_size || has_rank) l = (sp_launcher){known[i].name, size, rank, true};
    }
    if (l.name) return l;
    // Slurm. A step says how many tasks it has; the job's own count also stands in batch scripts
    // and interactive shells, which are one process, so it counts only for a task of a step.
    int64_t rank, tasks, step;
    if (!number(get, "SLURM_PROCID", &rank)) return l;
    bool in_step = number(get, "SLURM_STEP_ID", &step) || number(get, "SLURM_STEPID", &step);
    if (!number(get, "SLURM_STEP_NUM_TASKS", &tasks)) {
        if (!number(get, "SLURM_NTASKS", &tasks) && !number(get, "SLURM_NPROCS", &tasks)) return l;
        if (!in_step && rank == 0) return l;
    }
    if (tasks > 1) l = (sp_launcher){"Slurm", tasks, rank, false};
    return l;
}

static const char *environment(const char *name) {
    return getenv(name);
}

// Too few ranks: every process would believe to be the only one (S18).
static sp_status lonely(const sp_launcher *l, const char *why) {
    if (l->size > 1)
        return sp_error(SP_BAD_INPUT,
                        "%s announces %lld tasks, but this process finds 1 (itself): %s", l->name,
                        (long long)l->size, why);
    return sp_error(SP_BAD_INPUT,
                    "%s announces this process as rank %lld, but it finds 1 task (itself): %s",
                    l->name, (long long)l->rank, why);
}

static bool announces_several(const sp_launcher *l) {
    return l->size > 1 || l->rank > 0;
}

#if SPARDA_HAVE_MPI

static sp_status mpi_error(int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) snprintf(text, sizeof text, "?");
    return sp_error(SP_ENVIRONMENT,
                    "rank %d on %s: %s failed: %s; a peer is lost or the network is",
                    self.ranks.rank, self.ranks.host, call, text);
}

#define MPI_TRY(call)                                                                              \
    do {                                                                                           \
        int mpi_try_ = (call);                                                                     \
        if (mpi_try_ != MPI_SUCCESS) return mpi_error(mpi_try_, #call);                            \
    } while (0)

// A collective: `begin` is an MPI_I... call whose request is `request`; `what` is what this rank
// waits for.
#define MPI_COLLECT(what, begin)                                                                   \
    do {                                                                                           \
        MPI_Request request = MPI_REQUEST_NULL;                                                    \
        sp_heartbeat_lock();                                                                       \
        int collect_ = (begin);                                                                    \
        sp_heartbeat_unlock();                                                                     \
        if (collect_ == MPI_SUCCESS) collect_ = sp_heartbeat_wait(&request, what, false);          \
        if (collect_ != MPI_SUCCESS) return mpi_error(collect_, what);                             \
    } while (0)

static void note_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
                                        "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"};
    sp_text t = {0};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t v;
        if (number(environment, names[i], &v) && v != self.ranks.local_rank)
            sp_text_add(&t, "%s%s says %lld", t.len ? ", " : "", names[i], (long long)v);
    }
    if (t.len)
        sp_text_add(&t, "; the communicator says local rank %d, which counts",
                    self.ranks.local_rank);
    self.ranks.note = t.data;
}

static sp_status start_mpi(const sp_launcher *l) {
    int provided;
    SP_TRY(sp_heartbeat_prepare());
    MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    self.mpi = true;
    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &self.ranks.rank));
    MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &self.ranks.size));
    if (self.ranks.size == 1 && announces_several(l))
        return lonely(l, "the launcher belongs to another MPI than the one this program was built "
                         "with; start it with that MPI's own mpirun, or under Slurm with the "
                         "matching 'srun --mpi=pmix' or '--mpi=pmi2'");
    MPI_Comm local;
    MPI_TRY(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, self.ranks.rank,
                                MPI_INFO_NULL, &local));
    MPI_TRY(MPI_Comm_rank(local, &self.ranks.local_rank));
    MPI_TRY(MPI_Comm_size(local, &self.ranks.local_size));
    MPI_TRY(MPI_Comm_free(&local));
    MPI_TRY(sp_heartbeat_start(provided, self.ranks.host));
    note_local_rank();
    return SP_OK;
}

#endif

sp_status sp_ranks_open(const sp_ranks **out) {
    *out = &self.ranks;
    if (self.open) return SP_OK;
    self.open = true;
    self.ranks = (sp_ranks){.size = 1, .local_size = 1};
    if (gethostname(self.ranks.host, sizeof self.ranks.host - 1) != 0)
        strcpy(self.ranks.host, "unknown");
    sp_launcher l = sp_launcher_detect(environment);
    if (!l.name) return SP_OK;
#if SPARDA_HAVE_MPI
    // Started by srun without a PMI, an MPI library either ends the process or runs alone.
    if (!l.has_pmi)
        return lonely(&l, "Slurm offers no PMI for finding the others; use 'srun --mpi=pmix' (see "
                          "'srun --mpi=list'), or mpirun inside the job");
    SP_TRY(start_mpi(&l));
    return SP_OK;
#else
    if (announces_several(&l))
        return lonely(&l, "this program was built without MPI; build it with -DSPARDA_MPI=ON");
    return SP_OK;
#endif
}

void sp_ranks_close(void) {
#if SPARDA_HAVE_MPI
    if (self.mpi) sp_heartbeat_stop();
#endif
    free(self.ranks.note);
    free(self.values);
    free(self.share);
    memset(&self, 0, sizeof self);
    self.reports = true;
}

int sp_ranks_threads(void) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long share = cores / (self.open ? self.ranks.local_size : 1);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) < share)
        share = CPU_COUNT(&set);
    return share < 1 ? 1 : (int)share;
}

int sp_ranks_same_device(const char *ids, int size, int rank) {
    const char *own = ids + (size_t)rank * SP_RANKS_ID;
    for (int r = 0; r < rank && r < size && *own; r++)
        if (strncmp(ids + (size_t)r * SP_RANKS_ID, own, SP_RANKS_ID) == 0) return r;
    return -1;
}

// ---- failures -----------------------------------------------------------------------------------

bool sp_ranks_reports(void) {
    return self.reports;
}

#if SPARDA_HAVE_MPI

static bool alone(void) {
    return self.ranks.size <= 1;
}

// From rank `root`, in pieces that fit MPI's int counts.
static sp_status broadcast_from(int root, void *data, int64_t bytes) {
    enum { PIECE = 1 << 28 };
    for (int64_t at = 0; at < bytes; at += PIECE) {
        int n = (int)(bytes - at < PIECE ? bytes - at : PIECE);
        MPI_COLLECT("what another rank has read",
                    MPI_Ibcast((char *)data + at, n, MPI_BYTE, root, MPI_COMM_WORLD, &request));
    }
    return SP_OK;
}

// A copy of rank `root`'s text on every rank; caller frees.
static sp_status broadcast_text(int root, const char *text, char **out) {
    int64_t n = self.ranks.rank == root ? (int64_t)strlen(text) : 0;
    SP_TRY(broadcast_from(root, &n, sizeof n));
    SP_TRY(sp_alloc(out, n + 1, 1, "a text of another rank"));
    if (self.ranks.rank == root) memcpy(*out, text, (size_t)n);
    sp_status st = broadcast_from(root, *out, n);
    if (st != SP_OK) free(*out);
    return st;
}

sp_status sp_ranks_agree(sp_status local) {
    self.agreed = false;
    self.reports = true;
    if (alone()) return local;
    struct {
        int code, rank;
    } mine = {(int)local, self.ranks.rank}, worst;
    MPI_COLLECT("the agreement of all ranks",
                MPI_Iallreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD, &request));
    if (worst.code == SP_OK) return SP_OK;
    bool own = worst.rank == self.ranks.rank;
    if (own && local != SP_CHECK_FAILED)
        sp_error_prefix("rank %d on %s", self.ranks.rank, self.ranks.host);
    char *text;
    SP_TRY(broadcast_text(worst.rank, sp_error_text(), &text));
    if (!own) (void)sp_error((sp_status)worst.code, "%s", text);
    free(text);
    self.agreed = true;
    self.reports = own;
    return (sp_status)worst.code;
}

void sp_ranks_abort(int code) {
    if (!self.mpi || alone() || self.agreed) return;
    fflush(NULL);
    sp_heartbeat_abort(code);
}

// ---- data ---------------------------------------------------------------------------------------

static sp_status gather_bytes(const void *own, int n, void *all) {
    MPI_COLLECT("the devices of other ranks",
                MPI_Iallgather(own, n, MPI_BYTE, all, n, MPI_BYTE, MPI_COMM_WORLD, &request));
    return SP_OK;
}

static sp_status grow(float **buffer, int64_t *cap, int64_t n, const char *what) {
    if (n <= *cap) return SP_OK;
    free(*buffer);
    *buffer = NULL;
    *cap = 0;
    SP_TRY(sp_alloc(buffer, n, sizeof **buffer, what));
    *cap = n;
    return SP_OK;
}

// Masks that differ between the ranks of a host can give two of them the same GPU.
static sp_status require_own_device(const sp_backend *be) {
    char *ids = NULL, own[SP_RANKS_ID] = "";
    snprintf(own, sizeof own, "%s", sp_backend_device_id(be));
    SP_TRY(sp_ranks_agree(sp_alloc(&ids, self.ranks.size, SP_RANKS_ID, "ids of devices")));
    sp_status st = gather_bytes(own, SP_RANKS_ID, ids);
    int same = st == SP_OK ? sp_ranks_same_device(ids, self.ranks.size, self.ranks.rank) : -1;
    free(ids);
    SP_TRY(st);
    if (same >= 0)
        st = sp_error(SP_ENVIRONMENT,
                      "computes on %s, as rank %d does; let the launcher give all ranks of a host "
                      "the same CUDA_VISIBLE_DEVICES, or each its own GPU and no other",
                      own, same);
    return sp_ranks_agree(st);
}

sp_status sp_ranks_connect(sp_backend *be, double deadline_s) {
    if (alone()) return SP_OK;
    sp_heartbeat_limit(deadline_s);
    SP_TRY(require_own_device(be));
    int64_t unable = !sp_backend_has_comm(be);
    SP_TRY(sp_ranks_max(&unable, 1));
    if (unable) return SP_OK;
    char id[SP_COMM_ID_BYTES] = {0};
    SP_TRY(sp_ranks_agree(self.ranks.rank == 0 ? sp_comm_id(be, id) : SP_OK));
    SP_TRY(broadcast_from(0, id, sizeof id));
    // A rank that is silent is for the heartbeat to report, and once, so these waits end later.
    const double later_s = deadline_s + 5;
    SP_TRY(sp_ranks_agree(sp_comm_join(be, id, self.ranks.rank, self.ranks.size, later_s)));
    self.connected = true;
    return SP_OK;
}

// `counts` holds 4*size numbers: elements and offsets of each rank's share of the piece, then those
// received.
static sp_status sum_piece(float *piece, int64_t len, int *counts) {
    const int size = self.ranks.size, rank = self.ranks.rank;
    int *offsets = counts + size, *received = counts + 2 * size, *places = counts + 3 * size;
    for (int r = 0; r < size; r++) {
        offsets[r] = (int)(len * r / size);
        counts[r] = (int)(len * (r + 1) / size) - offsets[r];
    }
    int64_t own = counts[rank];
    for (int r = 0; r < size; r++) {
        received[r] = (int)own;
        places[r] = (int)(own * r);
    }
    MPI_COLLECT("the gradients of other ranks",
                MPI_Ialltoallv(piece, counts, offsets, MPI_FLOAT, self.share, received, places,
                               MPI_FLOAT, MPI_COMM_WORLD, &request));
    float *sum = piece + offsets[rank];
    for (int64_t i = 0; i < own; i++) {
        double s = 0;
        for (int r = 0; r < size; r++) s += (double)self.share[own * r + i];
        sum[i] = (float)s;
    }
    MPI_COLLECT("the summed gradients",
                MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, piece, counts, offsets,
                                MPI_FLOAT, MPI_COMM_WORLD, &request));
    return SP_OK;
}

sp_status sp_ranks_sum(sp_tensor *grad) {
    if (alone()) return SP_OK;
    if (self.connected) return sp_all_reduce(*grad);
    enum { PIECE = 1 << 22 }; // elements summed at once; bounds the share buffer
    const int size = self.ranks.size;
    int64_t n;
    if (grad->dtype != SP_F32 || !sp_mul(grad->rows, grad->cols, &n))
        return sp_error(SP_ENVIRONMENT, "sp_ranks_sum: F32 expected, found %s",
                        sp_dtype_name(grad->dtype));
    SP_TRY(grow(&self.values, &self.values_cap, n, "the gradient on its way to other ranks"));
    SP_TRY(grow(&self.share, &self.share_cap, PIECE + size, "the gradients of other ranks"));
    SP_TRY(sp_download(*grad, self.values));
    int *counts = NULL; // room of sum_piece
    SP_TRY(sp_alloc(&counts, 4 * (int64_t)size, sizeof *counts, "share sizes"));
    sp_status st = SP_OK;
    for (int64_t at = 0; at < n && st == SP_OK; at += PIECE)
        st = sum_piece(self.values + at, n - at < PIECE ? n - at : PIECE, counts);
    free(counts);
    return st == SP_OK ? sp_upload(*grad, self.values) : st;
}

static sp_status gather_doubles(const double *v, int64_t n, double *all) {
    MPI_COLLECT("the sums of other ranks", MPI_Iallgather(v, (int)n, MPI_DOUBLE, all, (int)n,
                                                          MPI_DOUBLE, MPI_COMM_WORLD, &request));
    return SP_OK;
}

sp_status sp_ranks_sum_doubles(double *v, int64_t n) {
    if (alone()) return SP_OK;
    double *all = NULL; // [size][n]
    int64_t total;
    if (!sp_mul(n, self.ranks.size, &total) || n > INT_MAX)
        return sp_error(SP_ENVIRONMENT, "sp_ranks_sum_doubles: %lld values", (long long)n);
    SP_TRY(sp_alloc(&all, total, sizeof *all, "the sums of all ranks"));
    sp_status st = gather_doubles(v, n, all);
    for (int64_t i = 0; i < n && st == SP_OK; i++) {
        v[i] = 0;
        for (int r = 0; r < self.ranks.size; r++) v[i] += all[r * n + i];
    }
    free(all);
    return st;
}

sp_status sp_ranks_max(int64_t *v, int64_t n) {
    if (alone()) return SP_OK;
    MPI_COLLECT(
        "the largest values of other ranks",
        MPI_Iallreduce(MPI_IN_PLACE, v, (int)n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD, &request));
    return SP_OK;
}

sp_status sp_ranks_broadcast(void *data, int64_t bytes) {
    return alone() ? SP_OK : broadcast_from(0, data, bytes);
}

sp_status sp_ranks_same(const char *what, const char *text) {
    if (alone()) return SP_OK;
    char *first;
    SP_TRY(broadcast_text(0, text, &first));
    sp_status st = SP_OK;
    if (strcmp(first, text) != 0) {
        size_t at = 0;
        while (first[at] && first[at] == text[at]) at++;
        while (at > 0 && first[at - 1] != '\n') at--; // show the line that differs
        int a = (int)strcspn(first + at, "\n"), b = (int)strcspn(text + at, "\n");
        st =
            sp_error(SP_BAD_INPUT,
                     "%s differs between ranks: rank 0 has '%.*s', this one '%.*s'; give all ranks "
                     "the same arguments and files",
                     what, a, first + at, b, text + at);
    }
    free(first);
    return sp_ranks_agree(st);
}

sp_status sp_ranks_rest(void) {
    if (alone()) return SP_OK;
    MPI_Request request;
    sp_heartbeat_lock();
    int rc = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    sp_heartbeat_unlock();
    if (rc == MPI_SUCCESS) rc = sp_heartbeat_wait(&request, "a rank with long work", true);
    return rc == MPI_SUCCESS ? SP_OK : mpi_error(rc, "a rank with long work");
}

void sp_ranks_step(int64_t step) {
    if (!alone()) sp_heartbeat_step(step);
}

#else // one process

sp_status sp_ranks_agree(sp_status local) {
    return local;
}
void sp_ranks_abort(int code) {
    (void)code;
}
sp_status sp_ranks_connect(sp_backend *be, double deadline_s) {
    return (void)be, (void)deadline_s, SP_OK;
}
sp_status sp_ranks_sum(sp_tensor *grad) {
    return (void)grad, SP_OK;
}
sp_status sp_ranks_sum_doubles(double *v, int64_t n) {
    return (void)v, (void)n, SP_OK;
}
sp_status sp_ranks_max(int64_t *v, int64_t n) {
    return (void)v, (void)n, SP_OK;
}
sp_status sp_ranks_broadcast(void *data, int64_t bytes) {
    return (void)data, (void)bytes, SP_OK;
}
sp_status sp_ranks_same(const char *what, const char *text) {
    return (void)what, (void)text, SP_OK;
}
sp_status sp_ranks_rest(void) {
    return SP_OK;
}

void sp_ranks_step(int64_t step) {
    (void)step;
}

#endif
