"""Makes the data of the challenge: signals like an EEG's, with seizures and much that looks like them. No patient is in them.

    python make_data.py --seed 7041776231

Training data are always the same. The test data come from the seed, and a person who knows it can make the labels: choose a large
one for a challenge that counts, and keep it secret. One seed gives the same bytes each time, with one version of numpy on one
kind of processor.
"""

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: Samples a second.
RATE = 64
#: Channels of the 10-20 system, and where they are on the head: right of the middle, before the middle.
PLACES = {
    "F3": (-1.0, 1.5),
    "F4": (1.0, 1.5),
    "C3": (-1.0, 0.5),
    "C4": (1.0, 0.5),
    "P3": (-1.0, -0.5),
    "P4": (1.0, -0.5),
    "O1": (-1.0, -1.5),
    "O2": (1.0, -1.5),
}
HEAD = np.array(list(PLACES.values()))
#: Patients of each split, and recordings of each patient. No patient is in two splits.
SPLITS = {"train": (12, 4), "public": (4, 5), "private": (4, 5)}
TRAINING_SEED = 0


@dataclass(frozen=True)
class Patient:
    """What the recordings of one patient have in common."""

    #: Root mean square of the background in µV, and how fast its power falls with the frequency.
    background: float
    slope: float
    #: Frequency in Hz and amplitude in µV of the alpha rhythm.
    alpha: tuple[float, float]
    #: Where seizures begin, as in `PLACES`; how far they reach.
    focus: np.ndarray
    reach: float
    #: Frequency of a discharge at its beginning and at its end, in Hz; its greatest amplitude in µV.
    seizure: tuple[float, float]
    strength: float


def make_patient(rng: np.random.Generator) -> Patient:
    background = rng.uniform(9, 22)
    return Patient(
        background=background,
        slope=rng.uniform(0.9, 1.4),
        alpha=(rng.uniform(8.5, 11.5), background * rng.uniform(0.4, 1.1)),
        focus=HEAD[rng.integers(len(HEAD))] + rng.normal(0, 0.2, 2),
        reach=rng.uniform(1.0, 1.9),
        seizure=(rng.uniform(6, 8), rng.uniform(3, 4)),
        strength=background * rng.uniform(1.2, 2.6),
    )


def near(place: np.ndarray, reach: float) -> np.ndarray:
    """Return how strong each channel sees a source at a place: 1 beside it, less farther away."""
    return np.exp(-np.sum((HEAD - place) ** 2, axis=1) / (2 * reach**2))


def noise(rng: np.random.Generator, rows: int, samples: int, slope: float) -> np.ndarray:
    """Return noise of root mean square 1, the power of which falls as the frequency to the power of `slope`."""
    spectrum = np.fft.rfft(rng.standard_normal((rows, samples)))
    frequencies = np.fft.rfftfreq(samples, 1 / RATE)
    spectrum *= np.maximum(frequencies, 0.5) ** (-slope / 2)
    spectrum[:, 0] = 0
    made = np.fft.irfft(spectrum, samples)
    return made / np.sqrt(np.mean(made**2, axis=1, keepdims=True))


def bump(samples: int) -> np.ndarray:
    """Return a curve from 0 to 1 and back."""
    return np.sin(np.linspace(0, np.pi, samples)) ** 2


def background(rng: np.random.Generator, patient: Patient, samples: int) -> np.ndarray:
    """Return what every EEG has: noise that neighbours share, and an alpha rhythm at the back of the head that comes and goes."""
    mixing = np.array([near(place, 0.9) for place in HEAD])
    shared = mixing @ noise(rng, len(HEAD), samples, patient.slope)
    signal = patient.background * shared / np.sqrt(np.mean(shared**2))
    frequency, amplitude = patient.alpha
    wander = np.cumsum(rng.normal(0, 0.06, samples))
    swell = np.clip(noise(rng, 1, samples, 2.5)[0], 0, 2)
    alpha = amplitude * swell * np.sin(2 * np.pi * frequency * np.arange(samples) / RATE + wander)
    return signal + np.outer(near(np.array([0, -1.6]), 1.0), alpha)


def blinks(rng: np.random.Generator, signal: np.ndarray) -> None:
    """Add eye blinks: slow, high and at the front, often several in a row."""
    samples = signal.shape[1]
    seen = near(np.array([0, 2.0]), 0.9)
    for start in rng.uniform(0, samples, rng.poisson(samples / RATE / 25)):
        at = start
        for _ in range(rng.integers(1, 7)):
            length = int(rng.uniform(0.25, 0.45) * RATE)
            if (begin := int(at)) + length < samples:
                signal[:, begin : begin + length] += np.outer(seen, rng.uniform(60, 140) * bump(length))
            at += rng.uniform(0.4, 1.2) * RATE


def muscle(rng: np.random.Generator, signal: np.ndarray) -> None:
    """Add activity of muscles: fast and rough, for seconds, over a side of the head."""
    samples = signal.shape[1]
    for start in rng.integers(0, samples, rng.poisson(samples / RATE / 60)):
        length = min(int(rng.uniform(2, 12) * RATE), samples - start)
        seen = near(HEAD[rng.integers(len(HEAD))], 0.8)
        rough = np.array([np.diff(rng.standard_normal(length + 1)) for _ in HEAD])
        signal[:, start : start + length] += rng.uniform(8, 30) * seen[:, None] * rough * np.sqrt(bump(length))


def pops(rng: np.random.Generator, signal: np.ndarray) -> None:
    """Add electrode pops: one channel jumps, and falls back within a second or two."""
    samples = signal.shape[1]
    for start in rng.integers(0, samples, rng.poisson(samples / RATE / 70)):
        length = min(3 * RATE, samples - start)
        decay = np.exp(-np.arange(length) / (rng.uniform(0.2, 0.6) * RATE))
        signal[rng.integers(len(HEAD)), start : start + length] += rng.choice([-1, 1]) * rng.uniform(80, 220) * decay


def rhythms(rng: np.random.Generator, patient: Patient, signal: np.ndarray) -> None:
    """Add rhythms that are no seizures: slow waves of a drowsy patient, and a cable that something moves; neither evolves."""
    samples = signal.shape[1]
    for start in rng.integers(0, samples, rng.poisson(samples / RATE / 60)):
        drowsy = rng.random() < 0.6
        length = min(int((rng.uniform(3, 9) if drowsy else rng.uniform(5, 20)) * RATE), samples - start)
        wave = np.sin(2 * np.pi * rng.uniform(3.5, 7) * np.arange(length) / RATE + np.cumsum(rng.normal(0, 0.08, length)))
        if drowsy:
            seen = near(np.array([0, 0.3]), 1.6) * rng.uniform(0.8, 1.6)
        else:
            seen = np.zeros(len(HEAD))
            seen[rng.integers(len(HEAD))] = rng.uniform(3, 7)
        signal[:, start : start + length] += np.outer(seen, patient.background * wave * np.sqrt(bump(length)))


def seizure(rng: np.random.Generator, patient: Patient, signal: np.ndarray, start: int, end: int) -> None:
    """Add a rhythmic discharge that becomes slower, stronger and wider until it ends."""
    length = end - start
    progress = np.linspace(0, 1, length)
    first, last = patient.seizure
    frequency = first + (last - first) * progress + noise(rng, 1, length, 2)[0] * 0.25
    phase = 2 * np.pi * np.cumsum(frequency) / RATE
    # A second harmonic makes the waves as sharp as those of real discharges.
    wave = np.sin(phase) + 0.45 * np.sin(2 * phase + 0.6)
    amplitude = patient.strength * rng.uniform(0.7, 1.2) * (0.25 + 0.75 * np.minimum(1, 1.6 * progress))
    amplitude *= np.minimum(1, (length - np.arange(length)) / RATE)
    reach = patient.reach * (0.6 + 0.6 * progress)
    distance = np.sum((HEAD - patient.focus) ** 2, axis=1)
    signal[:, start:end] += np.exp(-distance[:, None] / (2 * reach**2)) * amplitude * wave


def make_events(rng: np.random.Generator, seconds: int) -> list[tuple[float, float]]:
    """Return when the seizures of a recording are (s): none, one or two, at least 10 s from each other and from the ends."""
    events: list[tuple[float, float]] = []
    for _ in range(rng.choice(3, p=[0.35, 0.4, 0.25])):
        length = round(rng.uniform(8, 40) * 4) / 4
        start = round(rng.uniform(10, seconds - length - 10) * 4) / 4
        if all(start > end + 10 or start + length < begin - 10 for begin, end in events):
            events.append((start, start + length))
    return sorted(events)


def make_recording(rng: np.random.Generator, patient: Patient, seconds: int, events: list[tuple[float, float]]) -> np.ndarray:
    """Return a signal in µV, channels × samples."""
    signal = background(rng, patient, seconds * RATE)
    rhythms(rng, patient, signal)
    for start, end in events:
        seizure(rng, patient, signal, round(start * RATE), round(end * RATE))
    blinks(rng, signal)
    muscle(rng, signal)
    pops(rng, signal)
    return signal.astype(np.float16)


def write_table(file: Path, header: list[str], rows: list[list[str | float]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])


def make_split(directory: Path, split: str, seed: int) -> None:
    """Write the recordings of a split: labels beside the signals for training, and apart from them for tests."""
    inputs, reference = (directory, directory) if split == "train" else (directory / "input", directory / "reference")
    (inputs / "signals").mkdir(parents=True, exist_ok=True)
    recordings: list[list[str | float]] = []
    labels: list[list[str | float]] = []
    patients, each = SPLITS[split]
    number = list(SPLITS).index(split)
    for one in range(patients):
        patient = make_patient(np.random.default_rng([seed, number, one]))
        for other in range(each):
            rng = np.random.default_rng([seed, number, one, other + 1])
            name = f"{split}-{one + 1:02}-{other + 1}"
            seconds = int(rng.integers(120, 301))
            events = make_events(rng, seconds)
            np.save(inputs / "signals" / f"{name}.npy", make_recording(rng, patient, seconds, events))
            recordings.append([name, f"{split}-{one + 1:02}", seconds, RATE])
            labels += [[name, start, end] for start, end in events]
    write_table(inputs / "recordings.csv", ["recording", "patient", "duration", "rate"], recordings)
    write_table(reference / "recordings.csv", ["recording", "patient", "duration", "rate"], recordings)
    write_table(reference / "events.csv", ["recording", "start", "end"], labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--seed", type=int, default=1, help="the whole number that the test data come from (default: 1, for a trial)"
    )
    parser.add_argument("--directory", type=Path, default=Path(__file__).parent / "data", help="where the data are written")
    options = parser.parse_args()
    for split in SPLITS:
        make_split(options.directory / split, split, TRAINING_SEED if split == "train" else options.seed)
        print(f"{options.directory / split}: {SPLITS[split][0]} patients, {SPLITS[split][1]} recordings of each", flush=True)


if __name__ == "__main__":
    main()
