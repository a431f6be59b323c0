// Runs an engine on zeros and prints its first outputs: go run run.go ENGINE
package main

/*
#cgo LDFLAGS: -lpelton
#include <pelton.h>
#include <stdlib.h>

static int run(pelton_context *c) { return pelton_run(c, NULL, NULL); }
static int set_shapes(pelton_context *c, const int64_t *sizes, int count) {
    const int64_t *shapes[16];
    for (int i = 0; i < count; i++) shapes[i] = sizes + i * PELTON_MAX_RANK;
    return pelton_set_shapes(c, shapes);
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func check(sound bool) {
	if !sound {
		fmt.Fprintln(os.Stderr, C.GoString(C.pelton_error()))
		os.Exit(1)
	}
}

func main() {
	path := C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(path))
	engine := C.pelton_load(path)
	check(engine != nil)
	defer C.pelton_engine_free(engine)
	context := C.pelton_context_new(engine, 0)
	check(context != nil)
	defer C.pelton_context_free(context)

	count := C.pelton_inputs(engine)
	sizes := make([]C.int64_t, 8*int(count)+1)
	for i := C.int(0); i < count; i++ {
		for d, size := range C.pelton_input(engine, i).shape {
			if size < 1 { // dynamic sizes are -1
				size = 1
			}
			sizes[8*int(i)+d] = size
		}
	}
	check(C.set_shapes(context, &sizes[0], count) == 0)
	check(C.run(context) == 0)

	port := C.pelton_context_output(context, 0)
	scores := unsafe.Slice((*float32)(C.pelton_output_data(context, 0)), port.bytes/4)
	if len(scores) > 4 {
		scores = scores[:4]
	}
	fmt.Println(C.GoString(port.name), scores)
}
