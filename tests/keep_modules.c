// Linked into every program of a sanitizer build: modules stay loaded to the end, so that the leak
// report can name (and tests/lsan.supp recognise) the library that kept a piece of memory.
int dlclose(void *handle);

int dlclose(void *handle) {
    (void)handle;
    return 0;
}
