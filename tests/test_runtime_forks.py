"""Forks of a process that runs engines: after a run, during one, during a profile."""

from __future__ import annotations

from handmade import python


def test_a_fork_after_a_run():
    """As gunicorn does it: the parent loads and runs, children run the same engine, and so does the parent."""
    r = python("""
        import os, sys, warnings
        import numpy as np
        from handmade import chain, expected
        from pelton.runtime import Engine
        warnings.simplefilter("ignore")                    # Python warns of forks with threads: this is what is tested
        e = Engine(chain(20000))
        context = e.context(threads=3)
        x = np.arange(20000, dtype=np.float32)

        def good():
            wanted = expected(x)
            fresh = e.context(threads=2)
            runs = (e.run, context.run, fresh.run)
            return all(np.array_equal(run({"x": x})[k], wanted[k]) for _ in range(20) for run in runs for k in wanted)

        assert good()
        children = []
        for generation in range(6):
            child = os.fork()
            if child == 0:
                fine = good()
                if fine and generation == 0:               # and a child's child
                    grandchild = os.fork()
                    if grandchild == 0:
                        os._exit(0 if good() else 1)
                    fine = os.waitpid(grandchild, 0)[1] == 0
                tasks = len(os.listdir("/proc/self/task"))
                del context
                os._exit(0 if fine and tasks >= 3 else 1)
            children.append(child)
            assert good()
        assert [os.waitpid(c, 0)[1] for c in children] == [0] * 6 and good()
        print("good")
        """)
    assert r.stdout == "good\n", r.stderr


def test_a_fork_during_a_run():
    """Another thread is inside a run: the child starts with free contexts and an empty pool."""
    r = python("""
        import os, threading, warnings
        import numpy as np
        from handmade import chain, expected
        from pelton.runtime import Engine
        warnings.simplefilter("ignore")
        e, stop, x = Engine(chain(50000)), False, np.arange(50000, dtype=np.float32)
        shared = e.context(threads=2)

        def steady():
            while not stop:
                e.run({"x": x})
                shared.run({"x": x})
                shared.profile({"x": x})

        t = threading.Thread(target=steady)
        t.start()
        results = []
        for _ in range(25):
            child = os.fork()
            if child == 0:
                wanted = expected(x)
                runs = (e.run, shared.run, shared.run)
                fine = all(np.array_equal(run({"x": x})[k], wanted[k]) for run in runs for k in wanted)
                os._exit(0 if fine and len(shared.profile({"x": x})) == 3 else 1)
            results.append(os.waitpid(child, 0)[1])
        stop = True
        t.join()
        assert results == [0] * 25, results
        print("good")
        """)
    assert r.stdout == "good\n", r.stderr


def test_a_fork_during_a_profile():
    """The child has the program, but not who was to read the time stamps: its runs take none."""
    r = python("""
        import ctypes, os, threading, time
        import numpy as np
        from handmade import compiled
        from pelton.backends.cpu import NativeProgram, load_code
        x, z, stamps = np.ones(64, np.float32), np.zeros(64, np.float32), (ctypes.c_int64 * 2)()
        code = load_code(compiled())
        program = NativeProgram([(code.symbol("slow"), [x.ctypes.data, z.ctypes.data, 1, 3000], 2, 64, 1, 0, 0, 1)], 2)
        profile = program._library.pelton_program_profile
        profiles = threading.Thread(target=lambda: profile(program._handle, None, stamps))
        profiles.start()
        while not z[0]:
            time.sleep(0.001)
        child = os.fork()
        if not child:
            ctypes.memset(stamps, 0, 16)
            program.run()
            os._exit(any(stamps) or not program.profile()[0] > 10_000)
        profiles.join()
        print(os.waitpid(child, 0)[1], all(stamps))
        """)
    assert r.stdout == "0 True\n", r.stderr
