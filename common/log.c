#include "common/log.h"

#include "common/util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static int log_rank;
static bool log_quiet;
static bool progress_open; // an unfinished progress line stands on the terminal
static time_t progress_last;

sp_status sp_log_open(int rank, const char *path, bool quiet) {
    sp_log_close();
    pthread_mutex_lock(&lock);
    log_rank = rank;
    log_quiet = quiet;
    int fd = -1;
    sp_status st = path ? sp_open_own(path, O_WRONLY | O_APPEND, &fd) : SP_OK;
    if (fd >= 0 && !(file = fdopen(fd, "a"))) {
        st = sp_error(SP_ENVIRONMENT, "cannot open the log file %s: %s", path, strerror(errno));
        close(fd);
    }
    pthread_mutex_unlock(&lock);
    return st;
}

void sp_log_close(void) {
    pthread_mutex_lock(&lock);
    if (file) fclose(file);
    file = NULL;
    pthread_mutex_unlock(&lock);
}

static void end_progress(void) {
    if (progress_open) fputs("\r\033[K", stderr);
    progress_open = false;
}

static void line(const char *mark, bool to_stderr, const char *fmt, va_list ap) {
    pthread_mutex_lock(&lock);
    if (file) {
        char stamp[32];
        time_t now = time(NULL);
        struct tm tm;
        gmtime_r(&now, &tm);
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", &tm);
        va_list copy;
        va_copy(copy, ap);
        fprintf(file, "%s %s", stamp, mark);
        vfprintf(file, fmt, copy);
        fputc('\n', file);
        fflush(file);
        va_end(copy);
    }
    if (to_stderr) {
        end_progress();
        fputs(mark, stderr);
        vfprintf(stderr, fmt, ap);
        fputc('\n', stderr);
    }
    pthread_mutex_unlock(&lock);
}

void sp_info(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    line("", log_rank == 0 && !log_quiet, fmt, ap);
    va_end(ap);
}

void sp_warn(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    line("sparda: warning: ", log_rank == 0, fmt, ap);
    va_end(ap);
}

void sp_progress(const char *fmt, ...) {
    if (log_rank != 0 || log_quiet) return;
    bool terminal = isatty(2);
    pthread_mutex_lock(&lock);
    time_t now = time(NULL);
    va_list measure;
    va_start(measure, fmt);
    bool empty = vsnprintf(NULL, 0, fmt, measure) == 0; // compilers dislike an empty format itself
    va_end(measure);
    if (empty) {
        end_progress();
        progress_last = 0;
    } else if (terminal || now - progress_last >= 10) {
        progress_last = now;
        va_list ap;
        va_start(ap, fmt);
        if (terminal) fputs("\r\033[K", stderr);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
        if (!terminal) fputc('\n', stderr);
        progress_open = terminal;
    }
    pthread_mutex_unlock(&lock);
}
