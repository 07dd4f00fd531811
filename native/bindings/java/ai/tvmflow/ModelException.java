// SPDX-License-Identifier: Apache-2.0

package ai.tvmflow;

/** Failure of a model's library or the device's driver, with its remedy. */
public final class ModelException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** Kind of failure, as {@code tvmflow_status} in {@code tvmflow.h}. */
    public enum Status {
        UNKNOWN(-1),
        ARGUMENT(1),
        NO_OPENCL(2),
        UNSUPPORTED(3),
        BUILD(4),
        MEMORY(5),
        DAMAGED(6),
        DEVICE(7),
        BUSY(8),
        WRONG(9),
        /** Another thread ended the run. */
        CANCELLED(10);

        final int code;

        Status(int code) {
            this.code = code;
        }

        static Status of(int code) {
            for (Status status : values()) {
                if (status.code == code) {
                    return status;
                }
            }
            return UNKNOWN;
        }
    }

    private final Status status;

    ModelException(Status status, String message, Throwable cause) {
        super(message, cause);
        this.status = status;
    }

    /** Returns the kind of failure. */
    public Status status() {
        return status;
    }
}
