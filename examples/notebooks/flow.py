"""The Lorenz equations, and a way to integrate them."""

import numpy as np


def lorenz(point: np.ndarray, rho: float, sigma: float = 10.0, beta: float = 8 / 3) -> np.ndarray:
    x, y, z = point
    return np.array([sigma * (y - x), x * (rho - z) - y, x * y - beta * z])


def integrate(start: np.ndarray, rho: float, steps: int, step: float = 0.01) -> np.ndarray:
    """Return the path from `start`, by the classical method of Runge and Kutta."""
    path = np.empty((steps + 1, 3))
    path[0] = start
    for index in range(steps):
        here = path[index]
        first = lorenz(here, rho)
        second = lorenz(here + step / 2 * first, rho)
        third = lorenz(here + step / 2 * second, rho)
        fourth = lorenz(here + step * third, rho)
        path[index + 1] = here + step / 6 * (first + 2 * second + 2 * third + fourth)
    return path
