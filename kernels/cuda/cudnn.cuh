// cuDNN's graph interface, loaded when the program runs, and a maker of its descriptors. Only for
// dense_attention_cudnn.cu.
#pragma once

#include <cudnn_graph.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <vector>

namespace cudnn {

typedef cudnnBackendDescriptor_t Descriptor;

// ---- the library --------------------------------------------------------------------------------

const size_t OLDEST = 91801; // attention of any shape by one compiled kernel

struct Library {
    bool usable;
    char name[64]; // or why it is not
    decltype(&cudnnCreate) create;
    decltype(&cudnnDestroy) destroy;
    decltype(&cudnnSetStream) set_stream;
    decltype(&cudnnBackendCreateDescriptor) make;
    decltype(&cudnnBackendDestroyDescriptor) drop;
    decltype(&cudnnBackendSetAttribute) set;
    decltype(&cudnnBackendGetAttribute) get;
    decltype(&cudnnBackendFinalize) finalize;
    decltype(&cudnnBackendExecute) execute;
    decltype(&cudnnGetLastErrorString) last_error;
};

inline Library load() {
    Library l = {.name = "no cuDNN"};
    void *file = dlopen("libcudnn_graph.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!file) file = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!file) return l;
    bool found = true;
    auto find = [&]<class F>(F *function, const char *symbol) {
        *function = (F)dlsym(file, symbol);
        found = found && *function;
    };
    decltype(&cudnnGetVersion) version;
    find(&version, "cudnnGetVersion");
    find(&l.create, "cudnnCreate");
    find(&l.destroy, "cudnnDestroy");
    find(&l.set_stream, "cudnnSetStream");
    find(&l.make, "cudnnBackendCreateDescriptor");
    find(&l.drop, "cudnnBackendDestroyDescriptor");
    find(&l.set, "cudnnBackendSetAttribute");
    find(&l.get, "cudnnBackendGetAttribute");
    find(&l.finalize, "cudnnBackendFinalize");
    find(&l.execute, "cudnnBackendExecute");
    find(&l.last_error, "cudnnGetLastErrorString");
    if (!found) return l;
    size_t v = version();
    l.usable = v >= OLDEST;
    snprintf(l.name, sizeof l.name, "cuDNN %zu.%zu.%zu%s", v / 10000, v / 100 % 100, v % 100,
             l.usable ? "" : ": attention needs 9.18.1");
    return l;
}

inline const Library &library() {
    static const Library l = load(); // stays: it has its own ties to the CUDA driver
    return l;
}

// ---- descriptors --------------------------------------------------------------------------------

struct Attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    const void *value;
    Attribute(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const void *value,
              int64_t n = 1)
        : name(name), type(type), n(n), value(value) {}
    Attribute(cudnnBackendAttributeName_t name, const Descriptor *d, int64_t n = 1)
        : Attribute(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, d, n) {}
    Attribute(cudnnBackendAttributeName_t name, const cudnnDataType_t *t)
        : Attribute(name, CUDNN_TYPE_DATA_TYPE, t) {}
    Attribute(cudnnBackendAttributeName_t name, const int64_t *x, int64_t n = 1)
        : Attribute(name, CUDNN_TYPE_INT64, x, n) {}
    Attribute(cudnnBackendAttributeName_t name, const bool *yes)
        : Attribute(name, CUDNN_TYPE_BOOLEAN, yes) {}
};

// Makes descriptors; after a failure every further call is void.
struct Maker {
    const Library &l;
    std::vector<Descriptor> &all; // to be dropped, last first
    bool ok = true;

    Descriptor blank(cudnnBackendDescriptorType_t type) {
        Descriptor d = NULL;
        ok = ok && l.make(type, &d) == CUDNN_STATUS_SUCCESS;
        if (ok) all.push_back(d);
        return d;
    }
    Descriptor make(cudnnBackendDescriptorType_t type, std::initializer_list<Attribute> list) {
        Descriptor d = blank(type);
        for (const Attribute &a : list)
            ok = ok && (!a.value || l.set(d, a.name, a.type, a.n, a.value) == CUDNN_STATUS_SUCCESS);
        ok = ok && l.finalize(d) == CUDNN_STATUS_SUCCESS;
        return d;
    }
    template <class T>
    void get(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
             T *to, int64_t most, int64_t *n) {
        ok = ok && l.get(d, name, type, most, n, to) == CUDNN_STATUS_SUCCESS;
    }
};

inline void drop_all(const Library &l, std::vector<Descriptor> &all) {
    for (size_t i = all.size(); i-- > 0;) l.drop(all[i]);
    all.clear();
}

// What went wrong, and what the library says about it.
inline void say(char *to, size_t size, const char *what) {
    char text[128] = "";
    library().last_error(text, sizeof text);
    text[sizeof text - 1] = 0;
    snprintf(to, size, "%s: %s%s%s", library().name, what, *text ? ": " : "", text);
}

} // namespace cudnn
