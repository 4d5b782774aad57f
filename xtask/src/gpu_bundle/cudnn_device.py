"""cuDNN's description of this machine's first device, as a line of JSON.

With it cuDNN (since 9.8) plans for the device where there is none.
"""

import ctypes
import json

# Values of cuDNN's headers.
DEVICEPROP_DESCRIPTOR = 38
DEVICE_ID = 2700
JSON_REPRESENTATION = 2702
INT64, INT32, CHAR = 3, 23, 24


def refused(reason):
    print(json.dumps({"name": "cudnn_device", "refused": " ".join(str(reason).split())}))


def check(code, call):
    if code != 0:
        raise RuntimeError(f"{call} returned {code}")


def describe(cudnn):
    cudnn.cudnnGetVersion.restype = ctypes.c_size_t
    version = cudnn.cudnnGetVersion()
    descriptor = ctypes.c_void_p()
    code = cudnn.cudnnBackendCreateDescriptor(DEVICEPROP_DESCRIPTOR, ctypes.byref(descriptor))
    check(code, f"cudnnBackendCreateDescriptor of cuDNN {version}")
    one, device, wide = ctypes.c_int64(1), ctypes.c_int32(0), ctypes.c_int64(0)
    set_attribute = cudnn.cudnnBackendSetAttribute
    code = set_attribute(descriptor, DEVICE_ID, INT32, one, ctypes.byref(device))
    if code != 0:
        code = set_attribute(descriptor, DEVICE_ID, INT64, one, ctypes.byref(wide))
    check(code, "cudnnBackendSetAttribute")
    check(cudnn.cudnnBackendFinalize(descriptor), "cudnnBackendFinalize")
    count = ctypes.c_int64(0)
    get = cudnn.cudnnBackendGetAttribute
    none = ctypes.c_int64(0)
    code = get(descriptor, JSON_REPRESENTATION, CHAR, none, ctypes.byref(count), None)
    check(code, "cudnnBackendGetAttribute")
    text = ctypes.create_string_buffer(count.value + 1)
    code = get(descriptor, JSON_REPRESENTATION, CHAR, count, ctypes.byref(count), text)
    check(code, "cudnnBackendGetAttribute")
    print(json.dumps({"name": "cudnn_device", "text": f"cuDNN {version}", "descriptor": text.value.decode()}))


def main():
    try:
        # PyTorch's own is loaded, with all that it needs, by PyTorch.
        import torch  # noqa: F401
    except ImportError as error:
        return refused(f"{error}: cuDNN is looked for as PyTorch has it")
    for name in ("libcudnn.so.9", "libcudnn.so"):
        try:
            cudnn = ctypes.CDLL(name)
        except OSError as error:
            missing = error
            continue
        try:
            return describe(cudnn)
        except (RuntimeError, AttributeError) as error:
            return refused(error)
    refused(f"no cuDNN: {missing}")


main()
