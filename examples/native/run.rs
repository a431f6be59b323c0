// Runs an engine on zeros and prints its first outputs: run ENGINE. Compile: rustc run.rs -L FOLDER -l pelton
use std::ffi::{c_char, c_int, c_void, CStr, CString};

#[repr(C)]
struct Port {
    name: *const c_char,
    dtype: c_int,
    rank: c_int,
    shape: [i64; 8],
    bytes: usize,
}

extern "C" {
    fn pelton_error() -> *const c_char;
    fn pelton_load(path: *const c_char) -> *mut c_void;
    fn pelton_engine_free(engine: *mut c_void);
    fn pelton_inputs(engine: *const c_void) -> c_int;
    fn pelton_input(engine: *const c_void, i: c_int) -> *const Port;
    fn pelton_context_new(engine: *mut c_void, threads: c_int) -> *mut c_void;
    fn pelton_context_free(context: *mut c_void);
    fn pelton_set_shapes(context: *mut c_void, shapes: *const *const i64) -> c_int;
    fn pelton_run(context: *mut c_void, inputs: *const *const c_void, outputs: *const *mut c_void) -> c_int;
    fn pelton_context_output(context: *const c_void, i: c_int) -> *const Port;
    fn pelton_output_data(context: *mut c_void, i: c_int) -> *mut c_void;
}

fn check(sound: bool) {
    if !sound {
        eprintln!("{}", unsafe { CStr::from_ptr(pelton_error()) }.to_string_lossy());
        std::process::exit(1);
    }
}

fn main() {
    let path = CString::new(std::env::args().nth(1).expect("usage: run ENGINE")).unwrap();
    unsafe {
        let engine = pelton_load(path.as_ptr());
        check(!engine.is_null());
        let context = pelton_context_new(engine, 0);
        check(!context.is_null());
        let shapes: Vec<[i64; 8]> = (0..pelton_inputs(engine))
            .map(|i| (*pelton_input(engine, i)).shape.map(|size| size.max(1))) // dynamic sizes are -1
            .collect();
        let pointers: Vec<*const i64> = shapes.iter().map(|shape| shape.as_ptr()).collect();
        check(pelton_set_shapes(context, pointers.as_ptr()) == 0);
        check(pelton_run(context, std::ptr::null(), std::ptr::null()) == 0);
        let port = &*pelton_context_output(context, 0);
        let scores = std::slice::from_raw_parts(pelton_output_data(context, 0) as *const f32, port.bytes / 4);
        println!("{:?}: {:?}", CStr::from_ptr(port.name), &scores[..scores.len().min(4)]);
        pelton_context_free(context);
        pelton_engine_free(engine);
    }
}
