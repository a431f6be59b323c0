/* Runs MODEL twice on input0.bin … of the folder where the emulator runs, or on zeros, and writes output0.bin …
 * Prints the ticks of SysTick in a run and the deepest stack. */
#include "MODEL.h"

#include "semihosting.h"

uint32_t clock_ticks(void), stack_depth(void);

static int transfer(char *name, uint32_t mode, void *data, int32_t bytes) {
    uint32_t length = 0;
    while (name[length])
        length++;
    const int32_t file = file_open(name, length, mode);
    if (file < 0)
        return 0;
    const int left = file_transfer(mode == READ_BINARY ? SYS_READ : SYS_WRITE, file, data, (uint32_t)bytes);
    file_close(file);
    return left ? -1 : 1;
}

int main(void) {
    static char input[] = "input0.bin", output[] = "output0.bin";
    for (int run = 0; run < 2; run++) {
        for (int i = 0; i < NAME_INPUTS; i++) {
            char *data = MODEL_input(i);
            input[5] = (char)('0' + i);
            const int sound = transfer(input, READ_BINARY, data, MODEL_input_bytes(i));
            if (sound < 0) {
                print("an input has another size\n");
                return 1;
            }
            for (int32_t k = 0; !sound && k < MODEL_input_bytes(i); k++)
                data[k] = 0;
        }
        const uint32_t begin = clock_ticks();
        MODEL_run();
        print_number("ticks ", (clock_ticks() - begin) & 0xffffff);
    }
    for (int i = 0; i < NAME_OUTPUTS; i++) {
        output[6] = (char)('0' + i);
        if (transfer(output, WRITE_BINARY, (void *)MODEL_output(i), MODEL_output_bytes(i)) <= 0) {
            print("an output cannot be written\n");
            return 1;
        }
    }
    print_number("stack ", stack_depth());
    return 0;
}
