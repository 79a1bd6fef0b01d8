//! Programs in Python.

use super::{PACKAGE, built, python, run};
use crate::shared::{command, stderr, stdout};

#[test]
fn pythons_libraries_get_the_pool_when_they_are_imported() {
    let libraries = [
        ("torch", "print('torch loaded')"),
        ("cupy", ""),
        ("numba/__init__", ""),
        ("numba/cuda", "print('numba.cuda loaded')"),
        ("sitecustomize", "print('own sitecustomize')"),
    ];
    let modules = [&PACKAGE[..], &libraries].concat();
    let script =
        "print('begun'); import torch, cupy, numba.cuda, inspect; inspect.getsource(torch); import torch";
    let Some(output) = python(&modules, script, &[]) else { return };
    let told = "own sitecustomize\nbegun\ntorch loaded\ntorch enabled\nnumba.cuda loaded\nnumba enabled\n";
    assert_eq!(stdout(&output), told, "{}", stderr(&output));
    assert!(
        stderr(&output).contains("millpond: CuPy is served as any program: no CUDA here"),
        "{}",
        stderr(&output)
    );
    // One that only asked first whether they are there, and one that failed at its first try.
    let asks = "import importlib.util as i\nfor n in range(2): i.find_spec('torch'), i.find_spec('numba.cuda')\nimport torch, numba.cuda";
    let output = python(&modules, asks, &[]).unwrap();
    assert_eq!(stdout(&output).matches("enabled").count(), 2, "{}{}", stdout(&output), stderr(&output));
    let twice =
        "import os\nif not os.environ.pop('TRIED', ''): raise ImportError('not yet')\nprint('torch loaded')";
    let tries = "import os\ntry: import torch\nexcept ImportError: os.environ['TRIED'] = '1'\nimport torch";
    let failing = [&PACKAGE[..], &[("torch", twice)]].concat();
    let output = python(&failing, tries, &[]).unwrap();
    assert!(
        stdout(&output).ends_with("torch loaded\ntorch enabled\n"),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    // Under the command twice.
    let mut twice = run(&[command().get_program().to_str().unwrap(), "run", "python3", "-c", "import torch"]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sitecustomize.py"), "print('own')").unwrap();
    let output = twice.env("PYTHONPATH", folder.path()).output().unwrap();
    assert!(!stderr(&output).contains("RecursionError"), "{}", stderr(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "own\n");
    // Children too, and not what the caller's environment leaves out.
    let script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch, numba.cuda'], check=True)";
    let output = python(&modules, script, &[("MILLPOND_TORCH", "0")]).unwrap();
    assert_eq!(stdout(&output).matches("enabled").collect::<Vec<_>>().len(), 1, "{}", stdout(&output));
}

#[test]
fn a_python_without_the_package_is_told_what_it_lacks() {
    let Some(output) = python(&[("torch", "")], "import torch", &[]) else { return };
    let said = stderr(&output);
    assert!(
        said.contains("millpond: PyTorch is served as any program: for its interface to the pool, install"),
        "{said}"
    );
    let output =
        python(&[], "import sys; print('millpond' in sys.modules, 'json' in sys.modules)", &[]).unwrap();
    assert_eq!(stdout(&output), "False False\n");
}

#[test]
fn a_program_in_python_comes_by_the_entry_points() {
    let script = "
import ctypes
driver = ctypes.CDLL('libcuda.so.1')
context, at = ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(3 << 20)) == 0
ctypes.memset(at.value, 1, 3 << 20)
assert driver.cuMemFree_v2(at) == 0
";
    if built().is_none() {
        return;
    }
    let Some(output) = python(&[], script, &[]) else { return };
    stdout(&output);
    assert!(
        stderr(&output).contains("GPU 0: the pool held 4.00 MiB at most, for 3.00 MiB requested"),
        "{}",
        stderr(&output)
    );
}
