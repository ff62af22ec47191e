#include "common/h5.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local char reason[256];
static _Thread_local int depth;

static void make_lock(void) {
    // The library's own end-of-process cleaning writes again to files whose disk was full, and
    // crashes. Whoever opens a file closes it.
    H5dont_atexit();
    H5PLset_loading_state(0); // no code because a file names a filter
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
    pthread_mutexattr_destroy(&a);
}

static herr_t keep_reason(unsigned n, const H5E_error2_t *e, void *user) {
    (void)user;
    if (n != 0 || !e->desc) return 0;
    // Closing what was never opened, while cleaning up after the failure that counts.
    if (e->maj_num == H5E_ARGS && reason[0]) return 0;
    // Of a failed system call only the system's own words: "..., error message = 'No space ...', ".
    static const char mark[] = "error message = '";
    const char *words = strstr(e->desc, mark);
    words = words ? words + sizeof mark - 1 : e->desc;
    const char *end = words == e->desc ? NULL : strchr(words, '\'');
    snprintf(reason, sizeof reason, "%.*s", end ? (int)(end - words) : (int)sizeof reason, words);
    return 0;
}

// Called by the library whenever one of its functions fails, in place of printing.
static herr_t on_error(hid_t stack, void *user) {
    H5Ewalk2(stack, H5E_WALK_UPWARD, keep_reason, user);
    return 0;
}

void sp_h5_begin(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
    if (depth++ == 0) reason[0] = 0;
    H5Eset_auto2(H5E_DEFAULT, on_error, NULL);
}

void sp_h5_end(void) {
    depth--;
    pthread_mutex_unlock(&lock);
}

const char *sp_h5_reason(void) {
    return reason[0] ? reason : "unknown reason";
}

hid_t sp_h5_open_readonly(const char *path) {
    static hid_t fapl = -1;
    if (fapl < 0) {
        fapl = H5Pcreate(H5P_FILE_ACCESS);
#if H5_VERSION_GE(1, 10, 7)
        H5Pset_file_locking(fapl, false, true);
#endif
    }
    struct stat s; // a named pipe would block until somebody writes to it
    if (stat(path, &s) == 0 && !S_ISREG(s.st_mode)) {
        snprintf(reason, sizeof reason, "it is not a regular file");
        return -1;
    }
    return H5Fopen(path, H5F_ACC_RDONLY, fapl);
}

sp_h5_member sp_h5_look(hid_t group, const char *name) {
    H5L_info_t info;
    if (H5Lexists(group, name, H5P_DEFAULT) <= 0) return SP_H5_ABSENT;
    return H5Lget_info(group, name, &info, H5P_DEFAULT) >= 0 && info.type == H5L_TYPE_HARD
               ? SP_H5_OBJECT
               : SP_H5_LINK;
}

const char *sp_h5_stored_elsewhere(hid_t data_set) {
    hid_t plist = H5Dget_create_plist(data_set);
    const char *where = NULL;
    H5D_layout_t layout = H5Pget_layout(plist);
    if (plist < 0 || layout < 0)
        where = "in an unknown way";
    else if (layout == H5D_VIRTUAL)
        where = "in other data sets (it is virtual)";
    else if (H5Pget_external_count(plist) != 0)
        where = "in other files";
    H5Pclose(plist);
    return where;
}

bool sp_h5_usual_filters(hid_t plist) {
    int n = H5Pget_nfilters(plist);
    for (int i = 0; i < n; i++) {
        unsigned flags, config;
        size_t values = 0;
        H5Z_filter_t f =
            H5Pget_filter2(plist, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        if (f != H5Z_FILTER_DEFLATE && f != H5Z_FILTER_SHUFFLE && f != H5Z_FILTER_FLETCHER32)
            return false;
    }
    return n >= 0;
}
