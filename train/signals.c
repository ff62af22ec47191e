// Stop signals. See signals.h.
#include "train/signals.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
enum { N_NUMBERS = sizeof numbers / sizeof numbers[0] };

static atomic_bool armed, speaks;
static atomic_int first; // number of the first signal; 0 = none yet
static struct timespec first_time;

static double seconds_since(const struct timespec *t) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); // async-signal-safe
    return (double)(now.tv_sec - t->tv_sec) + 1e-9 * (double)(now.tv_nsec - t->tv_nsec);
}

static void end_now(int number) {
    static const char text[] =
        "sparda: second signal, ending at once; work since the last checkpoint is lost\n";
    // Nothing can be done about a failed write here.
    ssize_t written = armed ? write(2, text, sizeof text - 1) : 0;
    (void)written;
    _exit(number == SIGINT ? 130 : 143);
}

// Only ever runs in threads with a stack of their own: see signals.h.
static void on_signal(int number) {
    if (!armed) end_now(number);
    if (!first) {
        static const char text[] =
            "sparda: stopping: the step at hand is to be finished and saved; "
            "a second signal ends at once, without saving\n";
        clock_gettime(CLOCK_MONOTONIC, &first_time);
        first = number;
        ssize_t written = speaks ? write(2, text, sizeof text - 1) : 0;
        (void)written;
    } else if (seconds_since(&first_time) >= 0.1) {
        end_now(number);
    }
}

static void *take_signals(void *set) {
    pthread_sigmask(SIG_UNBLOCK, set, NULL);
    for (;;) pause();
    return NULL;
}

sp_status sp_signals_catch(void) {
    static sigset_t set; // outlives the thread's start
    static bool caught;
    if (caught) return SP_OK;
    sigemptyset(&set);
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&a.sa_mask); // handlers do not interrupt each other
    for (int i = 0; i < N_NUMBERS; i++) sigaddset(&set, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    pthread_t thread;
    int e = pthread_create(&thread, NULL, take_signals, &set);
    if (e) return sp_error(SP_ENVIRONMENT, "cannot start the signal thread: %s", strerror(e));
    pthread_detach(thread);
    for (int i = 0; i < N_NUMBERS; i++) sigaction(numbers[i], &a, NULL);
    caught = true;
    return SP_OK;
}

void sp_signals_arm(bool speak) {
    speaks = speak;
    armed = true;
}

bool sp_signals_stop(void) {
    return first != 0;
}

const char *sp_signals_name(void) {
    switch ((int)first) { // clang wants no atomic here
    case SIGTERM:
        return "SIGTERM";
    case SIGINT:
        return "SIGINT";
    case SIGUSR1:
        return "SIGUSR1";
    default:
        return "";
    }
}
