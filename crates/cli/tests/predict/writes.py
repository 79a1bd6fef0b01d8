# What scripts do with files. The argument is a folder of files, which is to stay as it is.
import ctypes, mmap, os, pathlib, shutil, socket, subprocess, sys, tempfile, zipfile

def text(path):
    with open(path) as file:
        return file.read()

def write(path, text, mode="w"):
    with open(path, mode) as file:
        file.write(text)

here = sys.argv[1]
os.chdir(here)
# Saved over, and read again: by name, by path, through a link.
with zipfile.ZipFile("best.pt", "w") as save:
    save.writestr("data.pkl", b"\0" * 1000)
assert zipfile.ZipFile(here + "/best.pt").read("data.pkl") == b"\0" * 1000
assert os.stat("best.pt").st_size == os.path.getsize("link.pt") > 1000
# Changed in place, added to, cut.
write("log.txt", "LINE", "r+")
write("log.txt", "more\n", "a")
assert text("log.txt") == "LINE one\nmore\n"
os.truncate("log.txt", 4)
assert text("log.txt") == "LINE"
# By memory.
with open("array.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as array:
    array[:4] = b"zero"
assert text("array.bin")[:4] == "zero"
try:
    open("no-folder/", "w")
    raise SystemExit("a folder was opened for writing")
except IsADirectoryError:
    pass
# Moved over, moved away, removed.
write("new.tmp", "new")
os.replace("new.tmp", "config.json")
assert text("config.json") == "new" and not os.path.exists("new.tmp")
os.rename("sub", "moved")
assert text("moved/inner.txt") == "inner" and not os.path.exists("sub/inner.txt")
write("moved/inner.txt", "other")
os.mkdir("sub")
assert os.listdir("sub") == []
os.remove("gone.txt")
try:
    open("gone.txt")
    raise SystemExit("it is there")
except FileNotFoundError:
    pass
shutil.rmtree("tree")
assert not os.path.exists("tree")
os.makedirs("tree/deep/er")
write("tree/deep/er/file", "deep")
os.chdir("tree/deep")
assert os.getcwd() == here + "/tree/deep" and text("er/file") == "deep"
assert os.path.realpath("er/file") == here + "/tree/deep/er/file"
os.chdir(here)
names = {"array.bin", "best.pt", "config.json", "link.pt", "log.txt", "moved", "sub", "tree"}
assert set(os.listdir()) == names == {entry.name for entry in os.scandir(here)}, os.listdir()
assert [path.name for path in pathlib.Path("tree").rglob("*")] == ["deep", "er", "file"]
# Links, rights, copies.
os.symlink("config.json", "other")
assert os.readlink("other") == "config.json" and text("other") == "new"
os.link("config.json", "hard")
os.chmod("config.json", 0o600)
shutil.copy2("config.json", "copy.json")
shutil.copytree("tree", "copies")
assert text("copies/deep/er/file") == "deep"
# Other programs of it.
shell = "echo shell > shell.txt && cat shell.txt config.json && mv shell.txt s.txt && rm -r copies && mkdir a && cp s.txt a/b && ls a"
told = subprocess.run(["sh", "-c", shell], capture_output=True, text=True)
assert told.stdout == "shell\nnewb\n", told
assert text("s.txt") == "shell\n" and text("a/b") == "shell\n"
write("run.sh", "#!/bin/sh\necho ran; echo x > from_sh\n")
os.chmod("run.sh", 0o755)
assert subprocess.check_output(["./run.sh"]) == b"ran\n" and text("from_sh") == "x\n"
assert subprocess.check_output([sys.executable, "-c", "print(open('config.json').read())"]) == b"new\n"
write("module.py", "value = 7")
sys.path.insert(0, here)
import module
assert module.value == 7
# Temporary files, pipes, sockets, devices, what the system tells.
with tempfile.TemporaryDirectory() as folder:
    write(folder + "/x", "x")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(folder + "/socket")
    listener.listen()
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(folder + "/socket")
        other.sendall(b"hello")
        assert listener.accept()[0].recv(5) == b"hello"
with tempfile.TemporaryFile() as file:
    file.write(b"x")
write("/dev/null", "x")
write("/proc/self/comm", "renamed")
assert text("/proc/self/comm") == "renamed\n"
end, begin = os.pipe()
write(begin, "piped")
assert os.read(end, 5) == b"piped"
print("seen", file=sys.stderr, flush=True)
write("/dev/stderr", "seen too\n")
assert subprocess.check_output(["sh", "-c", "echo of a program > /dev/stdout"]) == b"of a program\n"
# Descriptors that only read.
file = os.open("array.bin", os.O_RDONLY)
os.fchmod(file, 0o644)
for name in os.listdir():
    (shutil.rmtree if os.path.isdir(name) and not os.path.islink(name) else os.remove)(name)
assert os.listdir() == []
write("best.pt", "last")
