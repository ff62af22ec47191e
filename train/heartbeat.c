// The watch over other ranks. See heartbeat.h.
#include "common/build.h"
#include "common/status.h"

#if SPARDA_HAVE_MPI
#include "common/log.h"
#include "common/util.h"
#include "train/heartbeat.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOST = 256, TAG = 7 };
static double start_s = 120, end_s = 30; // deadlines of MPI_Init and MPI_Finalize
static const double ABORT_S = 10;        // for MPI_Abort, which first has to reach its launcher
static const double TICK_S = 0.1;        // how often the thread looks
static const double JUMP_S = 2; // a longer gap between two looks: this process was stopped itself

typedef enum { ALIVE = 1, BYE = 2 } word;

static struct {
    pthread_t thread;
    bool running;
    atomic_bool end;
    int rank, before, after; // neighbours in the ring
    char host_before[HOST];
    MPI_Comm comm;
    // below: under the lock
    const char *guarded; // what has to be over at guard_until; NULL: nothing
    double guard_until;
    bool beating;
    double limit, heard, said, looked; // the last: by the thread, or before it began
    int in_word, out_word;
    MPI_Request in, out;
    const char *doing; // what the computing thread waits for, or NULL
    long long step;
} self = {.limit = 30, .in = MPI_REQUEST_NULL, .out = MPI_REQUEST_NULL};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void sp_heartbeat_lock(void) {
    pthread_mutex_lock(&lock);
}

void sp_heartbeat_unlock(void) {
    pthread_mutex_unlock(&lock);
}

static void nap(double seconds) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)seconds,
                                 .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
              NULL);
}

// ---- ending -------------------------------------------------------------------------------------

static void *end_later(void *code) {
    nap(ABORT_S);
    _exit(*(int *)code);
    return NULL;
}

// A thread that no signal reaches: see train/signals.h.
static int start_thread(pthread_t *t, void *(*run)(void *), void *arg) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(t, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e;
}

// Ends this process in any case, whatever hangs from here on: a log on a lost disk, MPI_Abort.
static void end_anyway(int code) {
    static int kept;
    pthread_t t;
    kept = code;
    if (start_thread(&t, end_later, &kept) != 0) _exit(code);
}

static _Noreturn void abort_locked(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
    for (;;) pause();
}

_Noreturn void sp_heartbeat_abort(int code) {
    end_anyway(code);
    sp_heartbeat_lock();
    abort_locked(code);
}

// On stderr from every rank, and in the rank's log.
static void say(const char *text) {
    if (self.rank != 0) fprintf(stderr, "sparda: error: %s\n", text);
    sp_info("sparda: error: %s", text);
    fflush(NULL);
}

static _Noreturn void lost(const char *how) {
    end_anyway((int)SP_ENVIRONMENT);
    char text[1024], step[64] = "";
    if (self.step > 0) snprintf(step, sizeof step, " in step %lld", self.step);
    snprintf(text, sizeof text,
             "rank %d on %s %s; rank %d, which watches it, was %s%s%s. It is stopped, or its host "
             "or the network to it has failed. All ranks end now; continue with --resume",
             self.before, self.host_before, how, self.rank,
             self.doing ? "waiting for " : "computing", self.doing ? self.doing : "", step);
    say(text);
    abort_locked((int)SP_ENVIRONMENT);
}

// MPI_Init or MPI_Finalize hangs: no MPI call may be made, and the launcher ends the others.
static _Noreturn void overdue(double limit) {
    fprintf(stderr,
            "sparda: error: %s has taken more than %.0f s: another rank has not got there, or the "
            "network between the hosts does not work\n",
            self.guarded, limit);
    _exit((int)SP_ENVIRONMENT);
}

// ---- the ring -----------------------------------------------------------------------------------

static int listen_again(void) {
    return MPI_Irecv(&self.in_word, 1, MPI_INT, self.before, TAG, self.comm, &self.in);
}

static void beat(double now) {
    int done = 0, rc = MPI_Test(&self.in, &done, MPI_STATUS_IGNORE);
    while (rc == MPI_SUCCESS && done && self.in_word == ALIVE) {
        self.heard = now;
        rc = listen_again();
        if (rc == MPI_SUCCESS) rc = MPI_Test(&self.in, &done, MPI_STATUS_IGNORE);
    }
    if (rc != MPI_SUCCESS) lost("cannot be reached any more");
    bool left = done && self.in_word == BYE;
    if (!left && now - self.heard > self.limit) {
        char how[96];
        snprintf(how, sizeof how, "has been silent for %.1f s (watchdog_s: %g)", now - self.heard,
                 self.limit);
        lost(how);
    }
    double period = self.limit / 10 < 1 ? self.limit / 10 : 1;
    if (now - self.said < period) return;
    rc = MPI_Test(&self.out, &done, MPI_STATUS_IGNORE);
    if (rc == MPI_SUCCESS && done) { // otherwise the next rank has not taken the last one yet
        self.out_word = ALIVE;
        self.said = now;
        rc = MPI_Isend(&self.out_word, 1, MPI_INT, self.after, TAG, self.comm, &self.out);
    }
    (void)rc; // whether the next rank is there is seen by the one after it
}

static void *watch(void *unused) {
    (void)unused;
    while (!self.end) {
        nap(TICK_S);
        sp_heartbeat_lock();
        double now = sp_now(), gap = now - self.looked;
        self.looked = now;
        if (gap > JUMP_S) { // what the others said meanwhile has not been heard yet
            self.guard_until += gap;
            self.heard = now;
        }
        if (self.guarded && now > self.guard_until)
            overdue(strcmp(self.guarded, "MPI_Init") == 0 ? start_s : end_s);
        if (self.beating) beat(now);
        sp_heartbeat_unlock();
    }
    return NULL;
}

static void guard(const char *what, double seconds) {
    sp_heartbeat_lock();
    self.guarded = what;
    self.guard_until = sp_now() + seconds;
    sp_heartbeat_unlock();
}

// ---- start and end ------------------------------------------------------------------------------

void sp_heartbeat_deadlines(double start, double end) {
    start_s = start;
    end_s = end;
}

sp_status sp_heartbeat_prepare(void) {
    guard("MPI_Init", start_s);
    self.end = false;
    self.looked = sp_now();
    int e = start_thread(&self.thread, watch, NULL);
    if (e)
        return sp_error(SP_ENVIRONMENT, "cannot start the thread that watches other ranks: %s",
                        strerror(e));
    self.running = true;
    return SP_OK;
}

int sp_heartbeat_start(int provided, const char *host) {
    int size, rc = MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rc == MPI_SUCCESS) rc = MPI_Comm_rank(MPI_COMM_WORLD, &self.rank);
    if (rc != MPI_SUCCESS) return rc;
    self.after = (self.rank + 1) % size;
    self.before = (self.rank + size - 1) % size;
    char mine[HOST] = "";
    snprintf(mine, sizeof mine, "%s", host);
    rc = MPI_Comm_dup(MPI_COMM_WORLD, &self.comm);
    if (rc == MPI_SUCCESS)
        rc = MPI_Sendrecv(mine, HOST, MPI_CHAR, self.after, TAG, self.host_before, HOST, MPI_CHAR,
                          self.before, TAG, self.comm, MPI_STATUS_IGNORE);
    if (rc != MPI_SUCCESS) return rc;
    guard(NULL, 0);
    if (size == 1) return MPI_SUCCESS;
    int weakest = provided;
    rc = MPI_Allreduce(&provided, &weakest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (rc != MPI_SUCCESS) return rc;
    if (weakest < MPI_THREAD_SERIALIZED) {
        if (self.rank == 0)
            sp_warn("this MPI lets only one thread call it, so a rank that falls silent is not "
                    "noticed (watchdog_s has no effect on MPI)");
        return MPI_SUCCESS;
    }
    sp_heartbeat_lock();
    self.heard = sp_now();
    rc = listen_again();
    self.beating = rc == MPI_SUCCESS;
    sp_heartbeat_unlock();
    return rc;
}

void sp_heartbeat_limit(double seconds) {
    sp_heartbeat_lock();
    self.limit = seconds;
    sp_heartbeat_unlock();
}

void sp_heartbeat_step(int64_t step) {
    sp_heartbeat_lock();
    self.step = step;
    sp_heartbeat_unlock();
}

// Nobody stops listening before all have come here, so that a rank that is still busy is not taken
// for a silent one; then the last word goes round.
static void say_bye(void) {
    MPI_Request request;
    sp_heartbeat_lock();
    self.step = 0;
    int rc = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    sp_heartbeat_unlock();
    if (rc == MPI_SUCCESS) rc = sp_heartbeat_wait(&request, "all ranks to end", true);
    sp_heartbeat_lock();
    self.beating = false;
    sp_heartbeat_unlock();
    if (rc != MPI_SUCCESS) return;
    guard("the end of MPI", end_s); // from here on this thread alone calls MPI
    if (MPI_Wait(&self.out, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
    self.out_word = BYE;
    if (MPI_Isend(&self.out_word, 1, MPI_INT, self.after, TAG, self.comm, &self.out) != MPI_SUCCESS)
        return;
    while (MPI_Wait(&self.in, MPI_STATUS_IGNORE) == MPI_SUCCESS && self.in_word == ALIVE)
        if (listen_again() != MPI_SUCCESS) return;
    MPI_Wait(&self.out, MPI_STATUS_IGNORE);
}

void sp_heartbeat_stop(void) {
    if (self.beating) say_bye();
    guard("the end of MPI", end_s);
    if (self.running) MPI_Comm_free(&self.comm);
    MPI_Finalize();
    if (self.running) {
        self.end = true;
        pthread_join(self.thread, NULL);
        self.running = false;
    }
    guard(NULL, 0);
}

// ---- waiting ------------------------------------------------------------------------------------

int sp_heartbeat_wait(MPI_Request *request, const char *what, bool is_long) {
    const double start = sp_now();
    bool told = is_long;
    for (;;) {
        int done = 0;
        sp_heartbeat_lock();
        self.doing = what;
        int rc = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (rc != MPI_SUCCESS || done) self.doing = NULL;
        double limit = self.limit;
        sp_heartbeat_unlock();
        if (rc != MPI_SUCCESS || done) return rc;
        double waited = sp_now() - start;
        if (waited > limit && !told) {
            told = true;
            sp_info("has waited %.0f s for %s; no rank is silent, so one is busy with its part",
                    waited, what);
        }
        if (waited < 0.02)
            sched_yield();
        else
            nap(waited / 50 < 0.005 ? waited / 50 : 0.005);
    }
}

#endif
