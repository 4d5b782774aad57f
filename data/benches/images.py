"""What `images.rs` measures, by PyTorch's DataLoader with torchvision and Pillow.

    python images.py make FOLDER     300 JPEG files of about 500x375 from scikit-learn's photographs
    python images.py run FOLDER      images a second and peak memory (Pss) of 2 workers

FOLDER is then also what `LOWTIDE_BENCH_IMAGES` names for `cargo bench --bench images`.
"""

import os
import random
import sys
import threading
import time


def make(folder):
    from PIL import Image, ImageEnhance
    from sklearn.datasets import load_sample_images

    generator = random.Random(0)
    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    for index in range(300):
        image = photographs[index % 2]
        width = generator.randint(360, image.width)
        height = round(width * image.height / image.width)
        left = generator.randint(0, image.width - width)
        top = generator.randint(0, image.height - height)
        size = (generator.randint(480, 520), generator.randint(360, 390))
        part = image.crop((left, top, left + width, top + height)).resize(size, Image.LANCZOS)
        part = ImageEnhance.Brightness(part).enhance(generator.uniform(0.7, 1.3))
        os.makedirs(f"{folder}/{index % 2}", exist_ok=True)
        part.save(f"{folder}/{index % 2}/{index:03}.jpg", quality=90)


def pss_mib(pids):
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            pass
    return total / 1024


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def run(folder):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    steps = transforms.Compose([
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    dataset = datasets.ImageFolder(folder, steps)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    peak, is_done = [0.0], threading.Event()

    def watch():
        while not is_done.is_set():
            pid = os.getpid()
            peak[0] = max(peak[0], pss_mib([pid, *children(pid)]))
            time.sleep(0.05)

    before = pss_mib([os.getpid()])
    watcher = threading.Thread(target=watch)
    watcher.start()
    rates = []
    for _ in range(6):
        start, count = time.perf_counter(), 0
        for images, _labels in loader:
            count += len(images)
        rates.append(count / (time.perf_counter() - start))
    is_done.set()
    watcher.join()
    rates = sorted(rates[1:])
    print(f"images a second: median {rates[len(rates) // 2]:.0f}, best {rates[-1]:.0f}")
    print(f"memory: {before:.0f} MiB before, {peak[0]:.0f} MiB at its peak, all processes")


if __name__ == "__main__":
    {"make": make, "run": run}[sys.argv[1]](sys.argv[2])
