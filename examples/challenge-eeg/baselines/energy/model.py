"""Finds seizures by one number: the power from 3 to 8 Hz, against what is usual in the recording."""

import numpy as np

#: Seconds of a window, how many times the usual power counts as a seizure, and the shortest event in seconds.
WINDOW = 2
FACTOR = 2.0
SHORTEST = 4


def predict(signal, rate):
    length = WINDOW * rate
    windows = signal[:, : signal.shape[1] // length * length].reshape(len(signal), -1, length)
    spectrum = np.abs(np.fft.rfft(windows * np.hanning(length))) ** 2
    frequencies = np.fft.rfftfreq(length, 1 / rate)
    power = spectrum[:, :, (frequencies >= 3) & (frequencies <= 8)].sum(axis=2).mean(axis=0)
    ratio = power / np.median(power)
    events = []
    start = None
    for number, high in enumerate([*(ratio > FACTOR), False]):
        if high and start is None:
            start = number
        elif not high and start is not None:
            if (number - start) * WINDOW >= SHORTEST:
                confidence = 1 - FACTOR / ratio[start:number].max()
                events.append((start * WINDOW, number * WINDOW, confidence))
            start = None
    return events
