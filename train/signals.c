// Stop signals. See signals.h.
#include "train/signals.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t first; // number of the first signal; 0 = none yet
static struct timespec first_time;
static bool tolerate_echo;

static double seconds_since(const struct timespec *t) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); // async-signal-safe
    return (double)(now.tv_sec - t->tv_sec) + 1e-9 * (double)(now.tv_nsec - t->tv_nsec);
}

static void on_signal(int number) {
    if (!first) {
        clock_gettime(CLOCK_MONOTONIC, &first_time);
        first = number;
        return;
    }
    if (tolerate_echo && seconds_since(&first_time) < 0.1) return;
    static const char text[] = "sparda: second signal, ending at once; work since the last "
                               "checkpoint is lost\n";
    if (write(2, text, sizeof text - 1) < 0) { /* nothing can be done about it here */
    }
    _exit(number == SIGINT ? 130 : 143);
}

void sp_signals_catch(bool launched) {
    tolerate_echo = launched;
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigfillset(&a.sa_mask); // handlers do not interrupt each other
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
}

bool sp_signals_stop(void) {
    return first != 0;
}

const char *sp_signals_name(void) {
    switch (first) {
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
