#!/usr/bin/env python3
"""Writes heddle/_abi.py: the structs, enums and functions of heddle/heddle.h and heddle/nccl.h, for ctypes.

    make_abi.py OUTPUT CC INCLUDE...

CC preprocesses the header, which is then read by the few forms its declarations have; a form that is not known ends
the script, so that nothing is left out silently.
"""
import keyword
import re
import subprocess
import sys

SCALARS = {"int": "c_int", "unsigned": "c_uint", "int64_t": "c_int64", "uint64_t": "c_uint64", "size_t": "c_size_t",
           "float": "c_float", "double": "c_double", "char": "c_char"}


HEADERS = "#include <heddle/heddle.h>\n#include <heddle/nccl.h>\n"


class Headers:
    """What was declared so far, and how each type is called in ctypes."""

    def __init__(self):
        self.enums, self.structs, self.opaque, self.callbacks, self.functions = {}, {}, set(), {}, {}
        self.constants, self.aliases, self.order = {}, {}, []

    def ctype(self, text, where):
        text = re.sub(r"\b(const|struct)\b", " ", text)
        name, stars = text.replace("*", " ").split(), text.count("*")
        if len(name) != 1:
            sys.exit(f"make_abi.py: {where}: cannot read the type '{text}'")
        name = name[0]
        if name in self.aliases and stars == 0:
            return self.aliases[name]
        if name in self.callbacks and stars == 0:
            return name
        if (name in self.opaque or name == "void") and stars > 0:
            base, stars = "c_void_p", stars - 1
        elif name == "void":
            return "None"
        elif name == "char" and stars > 0:
            base, stars = "c_char_p", stars - 1
        elif name in SCALARS:
            base = SCALARS[name]
        elif name in self.enums:
            base = "c_int"
        elif name in self.structs:
            base = name
        else:
            sys.exit(f"make_abi.py: {where}: unknown type '{name}'")
        for _ in range(stars):
            base = f"POINTER({base})"
        return base

    def declarator(self, text, where):
        """'const int64_t *stride' -> (name, type); 'char why[160]' -> (name, c_char * 160)"""
        found = re.fullmatch(r"(.*?)\(\*(\w+)\)\((.*)\)", text, re.S)
        if found:
            return found[2], self.callback(found[1], found[3], where)
        found = re.fullmatch(r"(.*?[\s*])(\w+)((?:\[\w+\])*)", text.strip(), re.S)
        if not found:
            sys.exit(f"make_abi.py: {where}: cannot read '{text}'")
        made = self.ctype(found[1], where)
        for length in reversed(re.findall(r"\[(\w+)\]", found[3])):
            made = f"{made} * {self.value(length)}" if " " not in made else f"({made}) * {self.value(length)}"
        return found[2], made

    def callback(self, result, arguments, where):
        return f"CFUNCTYPE({', '.join([self.ctype(result, where)] + self.arguments(arguments, where))})"

    def arguments(self, text, where):
        if text.strip() in ("", "void"):
            return []
        return [self.declarator(one if re.search(r"[\s*]\w+$", one.strip()) else one + " unnamed", where)[1]
                for one in text.split(",")]

    def value(self, text):
        return self.constants[text] if text in self.constants else int(text, 0)

    def enum(self, name, body):
        following = 0
        for entry in filter(None, (one.strip() for one in body.split(","))):
            key, _, given = (part.strip() for part in entry.partition("="))
            following = self.value(given) if given else following
            self.constants[key] = following
            following += 1
        if name:
            self.enums[name] = True

    def struct(self, name, body):
        fields = []
        for line in filter(None, (one.strip() for one in body.split(";"))):
            callback = re.fullmatch(r".*\(\*\w+\)\(.*\)", line, re.S)
            first, *more = [line] if callback else line.split(",")
            fields.append(self.declarator(first, name))
            kind = re.match(r"((?:const\s+)?\w+)", first)[1]
            fields += [self.declarator(f"{kind} {one.strip()}", name) for one in more]
        self.structs[name] = [(f"{field}_" if keyword.iskeyword(field) else field, made) for field, made in fields]
        self.order.append(name)

    def declaration(self, text):
        text = re.sub(r"__attribute__\(\((?:[^()]|\([^()]*\))*\)\)", "", text)
        text = re.sub(r"\s+", " ", text).strip()
        found = re.fullmatch(r"(?:typedef )?enum (?:\w+ )?\{(.*)\} ?(\w*)", text)
        if found:
            return self.enum(found[2], found[1])
        found = re.fullmatch(r"typedef struct \w+ \{(.*)\} (\w+)", text)
        if found:
            return self.struct(found[2], found[1])
        found = re.fullmatch(r"(?:typedef struct \w+|struct) (\w+)", text)
        if found:
            return self.opaque.add(found[1])
        found = re.fullmatch(r"typedef (.*)\(\*(\w+)\)\((.*)\)", text)
        if found:
            self.callbacks[found[2]] = self.callback(found[1], found[3], found[2])
            return self.order.append(found[2])
        found = re.fullmatch(r"typedef (.*[ *])(\w+)", text)
        if found:
            self.aliases[found[2]] = self.ctype(found[1], found[2])
            return None
        found = re.fullmatch(r"(.*?[ *])(\w+)\((.*?)\)", text)
        if found and not found[3].endswith("..."):  # ctypes cannot declare those; heddle_set_error is the only one
            self.functions[found[2]] = self.ctype(found[1], found[2]), self.arguments(found[3], found[2])
        elif not found:
            sys.exit(f"make_abi.py: cannot read the declaration '{text[:200]}'")
        return None


def declarations(source):
    """The text cut at the semicolons outside of braces, without functions that have their body here."""
    source = re.sub(r"static inline [^{;]*\{[^{}]*\}", "", source)
    depth, start = 0, 0
    for at, letter in enumerate(source):
        depth += (letter == "{") - (letter == "}")
        if letter == ";" and depth == 0:
            yield source[start:at]
            start = at + 1


def preprocessed(cc, folders):
    """What heddle's own headers declare, without the system's, whose marks '# LINE "FILE"' tell them apart."""
    command = [*cc.split(), "-E", "-x", "c", *(f"-I{folder}" for folder in folders), "-"]
    run = subprocess.run(command, input=HEADERS, capture_output=True, text=True, check=True)
    kept, is_ours = [], False
    for line in run.stdout.split("\n"):
        mark = re.match(r'# \d+ "([^"]*)"', line)
        if mark:
            is_ours = "/heddle/" in mark[1] and any(mark[1].startswith(folder) for folder in folders)
        elif is_ours and not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept)


def write(headers):
    lines = ["# Made by runtime/python/make_abi.py from include/heddle; not to be edited.",
             "from ctypes import (CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_float, c_int, c_int64,",
             "                    c_size_t, c_uint, c_uint64, c_void_p)", ""]
    lines += [f"{name} = {value}" for name, value in headers.constants.items()]
    for name in headers.order:
        if name in headers.callbacks:
            lines += ["", "", f"{name} = {headers.callbacks[name]}"]
            continue
        lines += ["", "", f"class {name}(Structure):", "    _fields_ = ["]
        lines += [f'        ("{field}", {kind}),' for field, kind in headers.structs[name]] + ["    ]"]
    lines += ["", "", "# name: (result, arguments)", "FUNCTIONS = {"]
    lines += [f'    "{name}": ({result}, [{", ".join(arguments)}]),'
              for name, (result, arguments) in headers.functions.items()]
    lines += ["}", "STRUCTS = [" + ", ".join(headers.structs) + "]"]
    return "\n".join(lines) + "\n"


def main():
    output, cc, *folders = sys.argv[1:]
    headers = Headers()
    for text in declarations(preprocessed(cc, folders)):
        headers.declaration(text)
    with open(output, "w", encoding="utf-8") as file:
        file.write(write(headers))


if __name__ == "__main__":
    main()
