// Describes an engine and times it on random inputs: times ENGINE [THREADS]
#include <pelton.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>

int main(int count, char **given) try {
    if (count < 2)
        return std::cerr << "usage: times ENGINE [THREADS]\n", 2;
    const pelton::engine engine(given[1]);
    pelton::context context(engine, count > 2 ? std::stoi(given[2]) : 0);
    std::vector<pelton::shape> shapes;
    for (int i = 0; i < engine.inputs(); i++) {
        const pelton_port &p = engine.input(i);
        pelton::shape shape(p.shape, p.shape + p.rank);
        for (int d = 0; d < p.rank; d++)
            if (shape[d] == PELTON_DYNAMIC)
                shape[d] = std::max<std::int64_t>(engine.range(i, d).first, 1);
        std::cout << p.name << ":";
        for (std::int64_t size : shape)
            std::cout << ' ' << size;
        std::cout << '\n';
        shapes.push_back(shape);
    }
    context.set_shapes(shapes);

    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    for (int i = 0; i < engine.inputs(); i++)
        if (context.input(i).dtype == PELTON_F32)
            std::generate_n(context.input_data<float>(i), context.input(i).bytes / sizeof(float),
                            [&] { return normal(random); });
    std::vector<double> times;
    for (int i = 0; i < 100; i++) {
        const auto begin = std::chrono::steady_clock::now();
        context.run();
        times.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    std::cout << times[50] << " ms\n";
} catch (const pelton::error &e) {
    std::cerr << e.what() << '\n';
    return 1;
}
