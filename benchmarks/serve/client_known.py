"""Tests of others that are to fail, and why.

A name may have the last word of its part in front, where only that part's test fails.
"""

TOO_LARGE = "a request that is too large is answered with 413, where the test wants 400"
TEXT = "is rejected, with another text than the test wants"
FILES = "models are loaded from the repository, never from a request: the status is 501 or UNIMPLEMENTED"
STATUS = "an unknown key is INVALID_ARGUMENT, where the test wants INTERNAL"
KNOWN = {
    "simple_grpc_model_control.py": FILES,
    "test_load_oversized_file_parameter": FILES,
    "L0_grpc/python_grpc_aio_test.py test_register_system_shared_memory": STATUS,
    "test_content_encoding_chunked_manually": "a request with both Content-Length and Transfer-Encoding is"
    " rejected, since proxies disagree on where it ends",
    "test_negative_dimensions": "is answered with 400, where the test wants 500",
    "test_json_recursion_depth_limit": "texts may be nested more deeply; for numbers the error has another text",
    "test_repository_index_deeply_nested_json": TEXT,
    "test_json_dtype_size_expansion_exceeds_limit_error": TOO_LARGE,
    "test_default_limit_raw_binary": TOO_LARGE,
    "test_default_limit_json": TOO_LARGE,
    "test_default_limit_compressed": TOO_LARGE,
    "test_large_string_in_json": TOO_LARGE,
    "test_large_input_raw_binary": TOO_LARGE,
    "test_large_input_json": TOO_LARGE,
    "test_large_input_compressed": TOO_LARGE,
    "test_too_big_shm": TEXT,
    "test_infer_offset_out_of_bound": TEXT,
    "http test_infer_integer_overflow": TEXT,
    "test_register_reserved_names": TEXT,
    "test_register_invalid_shm_key": TEXT,
    "test_dynamic_model_load_unload": TEXT,
    "test_dynamic_version_load_unload": TEXT,
    "test_multiple_model_repository_polling": "a model that a second repository has, too, stays loaded",
}
