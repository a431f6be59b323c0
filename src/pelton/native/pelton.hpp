// Pelton's runtime for C++17 and newer: pelton.h with exceptions, and with objects that free what they hold.
//
//     pelton::engine engine("resnet.pelton");
//     pelton::context context(engine);
//     context.run({picture}, {scores});
#ifndef PELTON_HPP
#define PELTON_HPP

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pelton.h"

namespace pelton {

struct error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check(bool sound) {
    if (!sound)
        throw error(pelton_error());
}

using shape = std::vector<std::int64_t>;

// A network in memory, for any number of threads.
class engine {
public:
    explicit engine(const std::string &path) : engine(pelton_load(path.c_str())) {}
    // The data must not change during the life of the engine and its contexts.
    engine(const void *data, std::size_t size) : engine(pelton_load_memory(data, size)) {}
    // Adopts an engine of C, which is freed with this object.
    explicit engine(pelton_engine *of) : of_(of) { check(of); }

    pelton_engine *get() const { return of_.get(); }
    std::string name() const { return pelton_name(get()); }
    int inputs() const { return pelton_inputs(get()); }
    int outputs() const { return pelton_outputs(get()); }
    // Dynamic sizes are PELTON_DYNAMIC.
    const pelton_port &input(int i) const { return port(pelton_input(get(), i)); }
    const pelton_port &output(int i) const { return port(pelton_output(get(), i)); }
    // The smallest and the largest size of an input's axis.
    std::pair<std::int64_t, std::int64_t> range(int input, int axis) const {
        std::pair<std::int64_t, std::int64_t> found;
        check(!pelton_range(get(), input, axis, &found.first, &found.second));
        return found;
    }
    void verify() const { check(!pelton_verify(get())); }

private:
    friend class context;
    static const pelton_port &port(const pelton_port *p) {
        if (!p)
            throw error("there is no such input or output, or its shape was not set");
        return *p;
    }
    struct freed {
        void operator()(pelton_engine *e) const { pelton_engine_free(e); }
    };
    std::unique_ptr<pelton_engine, freed> of_;
};

// The memory of runs, one at a time: threads need contexts of their own.
class context {
public:
    // threads: 0 for those that the engine was tuned for.
    explicit context(const engine &of, int threads = 0) : of_(pelton_context_new(of.get(), threads)) { check(get()); }

    pelton_context *get() const { return of_.get(); }
    // Sets the shapes of all inputs; required before a run of an engine with dynamic sizes.
    void set_shapes(const std::vector<shape> &shapes) {
        std::vector<const std::int64_t *> pointers;
        for (const shape &s : shapes)
            pointers.push_back(s.data());
        check(!pelton_set_shapes(get(), pointers.data()));
    }
    const pelton_port &input(int i) const { return engine::port(pelton_context_input(get(), i)); }
    const pelton_port &output(int i) const { return engine::port(pelton_context_output(get(), i)); }
    // Memory of the context, valid until shapes change: runs without arrays use it.
    template <class T> T *input_data(int i) { return data<T>(pelton_input_data(get(), i)); }
    template <class T> T *output_data(int i) { return data<T>(pelton_output_data(get(), i)); }
    void run() { check(!pelton_run(get(), nullptr, nullptr)); }
    // Runs on dense arrays of the caller; nullptr selects memory of the context.
    void run(const std::vector<const void *> &inputs, const std::vector<void *> &outputs) {
        check(!pelton_run(get(), inputs.data(), outputs.data()));
    }

private:
    template <class T> static T *data(void *found) {
        check(found);
        return static_cast<T *>(found);
    }
    struct freed {
        void operator()(pelton_context *c) const { pelton_context_free(c); }
    };
    std::unique_ptr<pelton_context, freed> of_;
};

} // namespace pelton

#endif
